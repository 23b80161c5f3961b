"""The meetings of the workers: what leaves, what arrives, and the steps that all make together. Of one rank."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from ringdp.compress.codec import codecs_of
from ringdp.compress.exchange import Allotment, Arrived, Exchange
from ringdp.ddp.agreement import Comparison
from ringdp.local.fragments import Fragment
from ringdp.local.options import Options
from ringdp.local.outer import Outer
from ringdp.local.workers import Workers

NOTE_BYTES = 32
_BROADCAST_BYTES = 1 << 28


class Note:
    """What ranks must agree on when they meet, on its way: the step, and no faults. Collective, as is check()."""

    def __init__(self, group: dist.ProcessGroup | None, step: int, faults: Sequence[str]) -> None:
        """faults: of this rank, up to now."""
        self._faults = list(faults)
        self._comparison = Comparison(group, [*faults, f"step {step}"]) if group is not None else None

    def check(self) -> None:
        """RuntimeError on all ranks. Waits."""
        if self._comparison is not None and (difference := self._comparison.difference()):
            raise RuntimeError(
                f"DiLoCo: the ranks do not meet after the same steps. {difference}. All ranks call step() equally "
                "often, after all their workers; load the latest checkpoint"
            )
        if self._faults:
            raise RuntimeError(f"DiLoCo: {self._faults[0]}; load the latest checkpoint")


class OnTheWay(NamedTuple):
    """A fragment, and what ranks must agree on when it arrives; nothing where a checkpoint has brought it."""

    note: Note | None
    exchange: Exchange | Arrived


class Meetings:
    """Collective: end_step(). All ranks call the same collectives in the same order, as `schedule` is theirs alike.

    mean_residuals: by fragment, what codes have left out of the means that this rank owns. on_the_way: by fragment.
    faults: what this rank has done wrong, which all are told when they meet. log, finished: of Rounds. why_not_due: of
    a worker that makes no step now.
    """

    why_not_due = ""  # all workers make every step

    def __init__(
        self, group: dist.ProcessGroup | None, options: Options, workers: Workers, fragments: Sequence[Fragment]
    ) -> None:
        """workers: of this rank; all begin with the same values, which become the outer parameters."""
        self.group, self.options, self.workers, self.fragments = group, options, workers, fragments
        self.rank, ranks = (0, 1) if group is None else (group.rank(), group.size())
        self._codecs = codecs_of(options.compress, options.workers)
        self.allotment = Allotment(options.workers, ranks, self._codecs.block)
        self.schedule = options.schedule
        self.outer = Outer(fragments, workers.values(workers.in_place))
        self.on_the_way: dict[int, OnTheWay] = {}
        self.steps = 0
        self.faults: list[str] = []
        self.log: list[tuple[tuple[int, int], ...]] = []
        self.finished = False
        for worker in workers:
            self.owe_nothing(worker)
        coded = range(len(fragments) if options.compress is not None else 0)
        self.mean_residuals = [
            torch.zeros(self.own_shard(number)[1], dtype=torch.float32, device=self.device) for number in coded
        ]

    def owe_nothing(self, worker: int) -> None:
        """Codes have left nothing out of what this worker of this rank has contributed."""
        coded = self.fragments if self.options.compress is not None else ()
        self.workers[worker].residuals = [
            torch.zeros(fragment.elements, dtype=torch.float32, device=self.device) for fragment in coded
        ]

    @property
    def device(self) -> torch.device:
        """Of the parameters."""
        return self.workers.parameters[0].device

    def own_shard(self, number: int) -> tuple[int, int]:
        """(offset, length) of the elements of a fragment whose means this rank owns."""
        return self.allotment.shard(self.rank, self.fragments[number].elements)

    def due(self) -> list[int]:
        """The workers of this rank that make the next step."""
        return list(self.workers)

    def steps_of(self, worker: int) -> int:
        """How many this worker has made."""
        del worker
        return self.steps

    def outer_now(self) -> list[Tensor]:
        """Copies of the outer parameters, in the types of the model."""
        return self.outer.rounded()

    def check_still(self, what: str) -> None:
        """RuntimeError where something happens between steps, too: nothing does here."""

    def plan(self) -> str:
        """When workers meet, in words."""
        return str(self.schedule)

    def adopted(self, state: Mapping[str, Any]) -> None:
        """Parameters, momenta, residuals and counts of a state were taken."""

    def begin_step(self) -> None:
        """A worker of this rank begins a step."""

    @torch.no_grad()
    def end_step(self) -> None:
        """All workers of this rank have made a step; those that are due meet."""
        self.steps += 1
        schedule = self.schedule
        if schedule.is_synchronous(self.steps):
            self._step_together()
        if (fragment := schedule.halfway(self.steps)) in self.on_the_way:
            self.on_the_way[fragment].exchange.send_means()
        if (fragment := schedule.leaving(self.steps)) is not None:
            self._send(fragment)
        if (fragment := schedule.arriving(self.steps)) is not None:
            self._receive(fragment)
        if schedule.ends_round(self.steps):
            self._go_on_with(self._buffers_of_first())

    def bytes_sent(self) -> int:
        """By this rank in a round of `every` steps: fragments and notes, without buffers."""
        exchanges = (self.allotment.bytes_sent(self.rank, f.elements, self._codecs) for f in self.fragments)
        return sum(exchanges) + len(self.fragments) * (self.allotment.ranks - 1) * NOTE_BYTES

    def _send(self, number: int) -> None:
        """A fragment leaves: how far each worker has walked."""
        note = Note(self.group, self.steps, self.faults)
        residuals = {worker: self.workers[worker].residuals[number] for worker in self.workers if self.mean_residuals}
        exchange = self._exchange_of_ways(
            number, residuals, self.mean_residuals[number] if self.mean_residuals else None
        )
        self.on_the_way[number] = OnTheWay(note, exchange)

    def _exchange_of_ways(
        self, number: int, residuals: Mapping[int, Tensor], mean_residuals: Tensor | None
    ) -> Exchange:
        """Of how far workers have walked, in a fragment."""
        workers, fragment, begun = self.workers, self.fragments[number], self.outer.as_begun(number)
        return Exchange(
            self.group,
            self.allotment,
            self._codecs,
            fragment.elements,
            lambda worker: begun - fragment.flat(workers.values(worker)),
            residuals=residuals,
            mean_residuals=mean_residuals,
            device=self.device,
        )

    def _receive(self, number: int) -> None:
        """A fragment arrives: the outer step, and every worker goes on from there."""
        arriving, options = self.on_the_way[number], self.options
        mean = arriving.exchange.mean()
        if arriving.note is not None:
            arriving.note.check()
        del self.on_the_way[number]
        self.outer.step(number, mean, options.outer_lr, options.momentum, options.nesterov)
        for worker in self.workers:
            self.outer.give(number, self.workers.values(worker), options.alpha)

    def _step_together(self) -> None:
        """All workers make the inner step with the mean gradient; a gradient that no worker has stays None."""
        workers, note = self.workers, Note(self.group, self.steps, self.faults)
        given = {worker: workers[worker].gradients or [None] * len(workers.parameters) for worker in workers}
        used = [any(gradient is not None for gradient in of_one) for of_one in zip(*given.values(), strict=True)]
        flags = torch.tensor(used, dtype=torch.uint8, device=self.device)
        if self.group is not None:
            dist.all_reduce(flags, dist.ReduceOp.MAX, self.group)
        exchanges = [self._exchange_of(fragment, given) for fragment in self.fragments]
        for exchange in exchanges:
            exchange.send_means()
        means: dict[int, Tensor | None] = {}
        for fragment, exchange in zip(self.fragments, exchanges, strict=True):
            for number, _, mean in fragment.views(exchange.mean()):
                means[number] = mean.to(workers.parameters[number].dtype) if flags[number] else None
        note.check()
        for worker in workers:
            workers[worker].gradients = None
            workers.put_in_place(worker)
            own = (means[number] for number in range(len(means)))
            with torch.enable_grad():
                workers.make_step([None if mean is None else mean.clone() for mean in own])
        self.outer.set(workers.values(workers.in_place))

    def _exchange_of(self, fragment: Fragment, given: dict[int, list[Tensor | None]]) -> Exchange:
        """Of gradients. One that a worker does not have is -0.0, which changes no sum, not even one of -0.0."""
        parameters = self.workers.parameters

        def gradients(worker: int) -> Tensor:
            own = ((number, given[worker][number]) for number in fragment.numbers)
            return fragment.flat({n: torch.full_like(parameters[n], -0.0) if g is None else g for n, g in own})

        codecs = self._codecs.exact
        return Exchange(
            self.group, self.allotment, codecs, fragment.elements, gradients, residuals={}, mean_residuals=None
        )

    def _buffers_of_first(self) -> list[Tensor]:
        """Copies of worker 0's, which rank 0 plays. Collective."""
        own = self.workers.buffers(0) if self.rank == 0 else self.workers.model.buffers()
        copies = [buffer.detach().clone() for buffer in own]
        share(self.group, copies, 0)
        return copies

    def _go_on_with(self, buffers: Sequence[Tensor]) -> None:
        """All workers."""
        for worker in self.workers:
            for buffer, value in zip(self.workers.buffers(worker), buffers, strict=True):
                buffer.copy_(value)


def share(group: dist.ProcessGroup | None, tensors: list[Tensor], rank: int) -> None:
    """All ranks get those of one."""
    if group is not None and tensors:
        dist._broadcast_coalesced(group, tensors, _BROADCAST_BYTES, rank)
