"""Meetings that all ranks make or none, of workers that may be at different steps between them.

A meeting is prepared on copies: the mean, the outer step, what codes leave out, and so the state in which each worker
begins its next round. That is kept outside (elastic/local_training.py) before it is made, so whoever dies, the state of
every worker as of the latest meeting is somewhere, and its steps since then are made again. Nothing here waits for the
slowest but meetings.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ringdp.compress.exchange import Listed
from ringdp.local import state
from ringdp.local.meetings import Meetings
from ringdp.local.options import check_apart
from ringdp.local.outer import step_outside


@dataclass
class Prepared:
    """What a meeting changes. number, steps: its own, and after how many steps it is; None: it does not change that.

    outer, momentum: of the fragment. residuals: by worker. buffers: of all workers.
    """

    number: int
    steps: int
    fragment: int | None = None
    outer: Tensor | None = None
    momentum: Tensor | None = None
    residuals: dict[int, Tensor] | None = None
    mean_residuals: Tensor | None = None
    buffers: list[Tensor] | None = None


class KeptMeetings(Meetings):
    """number: of the latest meeting; the beginning is number 1. steps: of all workers, then. made: of each one, now.

    Collective: prepare(). After a failure there nothing has changed, and it may be called again, also in another group.
    """

    why_not_due = "has made this step already, and others of this rank, which have come to it, make up for theirs"

    def __init__(self, meetings: Meetings) -> None:
        """In the place of others, which are between two steps, until give_back()."""
        vars(self).update(vars(meetings))
        self.number = 1
        self.made = dict.fromkeys(self.workers, self.steps)
        self.prepared: Prepared | None = None
        self._owned_from = [self.own_shard(number)[0] for number in range(len(self.mean_residuals))]

    def give_back(self, meetings: Meetings) -> None:
        """They go on where these are."""
        vars(meetings).update({name: vars(self)[name] for name in vars(meetings)})

    def due(self) -> list[int]:
        """The workers of this rank that have made the fewest steps: they make the next one."""
        least = min(self.made.values(), default=0)
        return [worker for worker, made in self.made.items() if made == least]

    def steps_of(self, worker: int) -> int:
        """How many this worker has made."""
        return self.made[worker]

    def end_step(self) -> None:
        """The workers that were due have made a step."""
        for worker in self.due():
            self.made[worker] += 1

    def check_still(self, what: str) -> None:
        """RuntimeError between two meetings."""
        if any(made != self.steps for made in self.made.values()):
            raise RuntimeError(
                f"DiLoCo: {what} while workers step alone, after the meeting at step {self.steps}: do that in after= "
                "or save= of survive_local, or after train()"
            )

    def next(self, last: int) -> int:
        """After how many steps the next meeting is; at most `last`, where the training ends."""
        steps = range(self.steps + 1, last)
        return next((s for s in steps if self.schedule.leaving(s) is not None or self.schedule.ends_round(s)), last)

    @torch.no_grad()
    def prepare(self, steps: int) -> Prepared:
        """The meeting after so many steps, which all workers of this rank have made."""
        made, options = Prepared(self.number + 1, steps, self.schedule.leaving(steps)), self.options
        if made.fragment is not None:
            number = made.fragment
            if self.mean_residuals:
                made.residuals = {worker: self.workers[worker].residuals[number].clone() for worker in self.workers}
                made.mean_residuals = self.mean_residuals[number].clone()
            mean = self._exchange_of_ways(number, made.residuals or {}, made.mean_residuals).mean()
            made.outer, made.momentum = self.outer.parameters[number].clone(), self.outer.momentum[number].clone()
            step_outside(made.outer, made.momentum, mean, options.outer_lr, options.momentum, options.nesterov)
        if self.schedule.ends_round(steps):
            made.buffers = self._buffers_of_first()
        self.prepared = made
        return made

    @torch.no_grad()
    def make(self) -> None:
        """The meeting that was prepared."""
        made, self.prepared = self.prepared, None
        if made.outer is not None:
            number = made.fragment
            self.outer.parameters[number], self.outer.momentum[number] = made.outer, made.momentum
            for worker in self.workers:
                self.outer.give(number, self.workers.values(worker), self.options.alpha)
        if made.residuals is not None:
            for worker, residuals in made.residuals.items():
                self.workers[worker].residuals[made.fragment] = residuals
            self.mean_residuals[made.fragment] = made.mean_residuals
        if made.buffers is not None:
            self._go_on_with(made.buffers)
        self.number, self.steps = made.number, made.steps
        self.made = dict.fromkeys(self.workers, self.steps)

    # What is kept, as of a meeting.

    def worker_at(self, worker: int, made: Prepared | None) -> state.State:
        """A worker of this rank as it is at the latest meeting, or as one that was prepared would make it."""
        own = state.of_worker(self, worker)
        if made is None:
            return own
        if made.outer is not None:
            values, alpha = self.workers.values(worker), self.options.alpha
            given = self.outer.given(made.fragment, made.outer, values, alpha)
            own["parameters"] |= {name: value.to(values[number].dtype) for number, name, value in given}
        if made.residuals is not None:
            fragment = self.fragments[made.fragment]
            own["residual"] |= {name: view for _, name, view in fragment.views(made.residuals[worker])}
        if made.buffers is not None:
            own["buffers"] = dict(zip(state.buffer_names(self), made.buffers, strict=True))
        return own

    def common_at(self, made: Prepared | None) -> state.State:
        """The same of what all ranks have."""
        parameters, momentum = list(self.outer.parameters), list(self.outer.momentum)
        if made is not None and made.outer is not None:
            parameters[made.fragment], momentum[made.fragment] = made.outer, made.momentum
        trained = {name for fragment in self.fragments for name in fragment.names}
        model = self.workers.model
        return {
            "number": self.number if made is None else made.number,
            "steps": self.steps if made is None else made.steps,
            "outer": parameters,
            "momentum": momentum,
            "frozen": {name: p.data for name, p in model.named_parameters() if name not in trained},
            "buffers": dict(model.named_buffers()),
        }

    def means_at(self, made: Prepared | None) -> Iterator[tuple[int, int, Tensor]]:
        """(fragment, first element, what codes have left out of the means that this rank owns)."""
        for number, residuals in enumerate(self.mean_residuals):
            changes = made is not None and made.mean_residuals is not None and made.fragment == number
            yield number, self._owned_from[number], made.mean_residuals if changes else residuals

    def state_dict(self) -> state.State:
        """What all ranks have, for one that joins."""
        return self.common_at(None)

    @torch.no_grad()
    def load_state_dict(self, its: Mapping[str, Any]) -> None:
        """The inverse. This rank plays nobody then, and owns no means; buffers are those of another rank's worker."""
        for worker in [*self.workers]:
            self.remove(worker)  # with which its program began
        self.mean_residuals = [residuals[:0] for residuals in self.mean_residuals]
        self.number, self.steps = its["number"], its["steps"]
        for own, values in ((self.outer.parameters, its["outer"]), (self.outer.momentum, its["momentum"])):
            for flat, value in zip(own, values, strict=True):
                flat.copy_(value)
        model = self.workers.model
        for kind, named in (("frozen", model.named_parameters()), ("buffers", model.named_buffers())):
            for name, own in named:
                if name in its[kind]:
                    own.copy_(its[kind][name])

    # From one group to the next.

    def regroup(self, group: dist.ProcessGroup) -> None:
        """Between meetings. Who plays whom, and who owns which means, is what it was until allot() and own_means()."""
        self.group, self.rank = group, group.rank()

    def allot(self, by_rank: Sequence[Sequence[int]]) -> None:
        """Who plays whom from now on; those of this rank that are not in it leave it, and new ones come by add()."""
        listed = tuple(map(tuple, by_rank))
        self.allotment = Listed(self.options.workers, len(listed), self._codecs.block, by_rank=listed)
        for worker in set(self.workers) - set(listed[self.rank]):
            self.remove(worker)

    def own_means(self, whole: Sequence[Tensor]) -> None:
        """What codes have left out of all means, by fragment."""
        shards = [self.own_shard(number) for number in range(len(whole))]
        self.mean_residuals = [residuals[at : at + n].clone() for residuals, (at, n) in zip(whole, shards, strict=True)]
        self._owned_from = [at for at, _ in shards]

    def remove(self, worker: int) -> None:
        """This rank plays it no longer."""
        self.workers.remove(worker)
        self.made.pop(worker, None)

    def add(self, worker: int, its: Mapping[str, Any] | None) -> None:
        """As it was at the latest meeting; None: as one that begins with the outer parameters, without residuals.

        ValueError where its new inner optimizers are not its own.
        """
        self.workers.add(worker)
        check_apart([self.workers[number].optimizers for number in self.workers])
        self.owe_nothing(worker)
        if its is None:
            with torch.no_grad():
                for number in range(len(self.fragments)):
                    self.outer.give(number, self.workers.values(worker), 0.0)
        else:
            state.adopt_worker(self, worker, its)
            state.adopt_inner(self, worker, its)
        self.made = dict(sorted({**self.made, worker: self.steps}.items()))


def dealt(players: Sequence[int | None], ranks: int) -> list[list[int]]:
    """By rank: workers who have a player stay there, the others go to ranks with the fewest, then all to equally many.

    Worker 0 is on rank 0, whose buffers are shared and saved. players: by worker.
    """
    by_rank: list[list[int]] = [[] for _ in range(ranks)]
    by_rank[0].append(0)
    homeless = []
    for worker, player in list(enumerate(players))[1:]:
        (homeless if player is None else by_rank[player]).append(worker)
    for worker in homeless:
        min(by_rank, key=len).append(worker)
    while len(fullest := max(by_rank, key=len)) > len(emptiest := min(by_rank, key=len)) + 1:
        fullest.sort()
        emptiest.append(fullest.pop())
    return [sorted(workers) for workers in by_rank]
