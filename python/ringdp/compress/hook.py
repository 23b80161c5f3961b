"""The communication hook of a wrapper with compress=...: a thread of its own compresses, sends and decodes buckets.

So the backward pass goes on meanwhile, until the next bucket is full. The process group is one of its own, too, as
other collectives of the program may come in another order than buckets.
"""

from __future__ import annotations

import queue
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor

from ringdp.compress.auto import Judge, Kind
from ringdp.compress.ledger import Entry, Ledger, Norms
from ringdp.compress.means import Means, Part, Residuals, Sent, means_of, norm
from ringdp.compress.methods import Auto, Codes, Decision, Method, PowerSGD, TopK, fixed
from ringdp.compress.owners import bucket_shards
from ringdp.ddp.modes import STOCK_ARGUMENTS, check_sums, group_like, ring_options

if TYPE_CHECKING:
    from ringdp.compress.one_bit import OneBitAdam
    from ringdp.ddp.reducer import Reducer

_ONE_BUCKET_MB = 1 << 20
_NORMS_EVERY = 16  # compressed steps, as they take time


class Compression:
    """Collective: the constructor. names: of all parameters of the wrapper. reducer: which calls it; held weakly."""

    def __init__(self, group: dist.ProcessGroup, names: dict[Tensor, str], method: Method, reducer: Reducer) -> None:
        self.method, self.ranks, self.rank = method, group.size(), group.rank()
        self.name = repr(Auto(method.method) if isinstance(method, Auto) else method)  # in checkpoints
        self.names, self._reducer = names, weakref.ref(reducer)
        self._group_of_means = group
        self._parameters = {name: parameter for parameter, name in names.items()}
        self.group = group_like(group, ring_options(group, torch.device("cpu"))) if group.size() > 1 else None
        self.means: Means = means_of(self.group, fixed(method))
        self.steps = 0  # that have been made
        # By bucket, where gradients are kept in shards.
        sharded = reducer.zero_stage >= 2
        self._shards = bucket_shards(reducer.shard_layout, reducer.names, self.rank) if sharded else None
        self._judge = Judge(method, self.group) if isinstance(method, Auto) else None
        self._kind = Kind.CODED
        self._entries: dict[int, Entry] = {}
        self._norms: dict[int, Norms] = {}
        self._coded = 0  # steps that were compressed, of this wrapper
        self._failure = ""  # the first one: then this rank's codes no longer meet those of the others
        self._waiting: queue.SimpleQueue[torch.futures.Future[None] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._optimizer: Callable[[], OneBitAdam | None] = lambda: None
        self.restore(0, ())

    @property
    def decisions(self) -> list[Decision]:
        """So far; none where nothing is to be decided."""
        return self._judge.schedule.decisions if self._judge is not None else []

    def follow(self, optimizer: OneBitAdam) -> None:
        """Its momentum is sent, not gradients, once that is to be. Collective.

        NotImplementedError names a method that cannot, ValueError what differs among ranks.
        """
        if (reducer := self._reducer()) is not None and reducer.zero_stage > 0:
            raise NotImplementedError(
                f"OneBitAdam: zero_stage={reducer.zero_stage}: its state is not in shards: use zero_stage=0"
            )
        if not isinstance(self.method, (Codes, TopK)):
            raise NotImplementedError(
                f"OneBitAdam: compress={self.method}: it is for codes that are always sent: use 'sign', 'int8', 'fp8' "
                "or a ringdp.TopK"
            )
        check_sums(self._group_of_means, torch.device("cpu"), "OneBitAdam promises those of one process")
        if self.group is not None:
            told: list[Any] = [None] * self.ranks
            dist.all_gather_object(told, optimizer.told(), self.group)
            for name in told[0]:
                if len({repr(of_rank[name]) for of_rank in told}) > 1:
                    by_rank = ", ".join(str(of_rank[name]) for of_rank in told)
                    raise ValueError(f"OneBitAdam: {name} must be the same on all ranks, and is {by_rank}, by rank")
        self._optimizer = weakref.ref(optimizer)
        self.begin_pass()

    def begin_pass(self) -> None:
        """In front of a forward pass."""
        if (optimizer := self._optimizer()) is not None:
            optimizer.begin_pass()
            self._begin(Kind.CODED if optimizer.is_frozen else Kind.WHOLE)
        elif self._judge is None and self._kind is not Kind.CODED:  # that optimizer is gone
            self._begin(Kind.CODED)

    def end_pass(self) -> None:
        """After each synchronised backward pass. Collective."""
        self.steps += 1
        self._coded += self._kind is Kind.CODED
        if self._judge is not None:
            self._begin(self._judge.next_step(self.steps))

    def restore(self, steps: int, decisions: Sequence[Decision]) -> None:
        """Of a checkpoint, between steps."""
        self.steps = steps
        if self._judge is not None:
            self._judge.restore(decisions)
            self._begin(self._judge.schedule.kind(steps))

    def drop_residuals(self) -> None:
        """Nothing was left out so far. Between steps."""
        self.means.residuals, self.means.factors = Residuals(), {}

    def _begin(self, kind: Kind) -> None:
        self._kind = kind
        if (reducer := self._reducer()) is not None:
            reducer.use_comm_hook(kind is not Kind.WHOLE)

    def __call__(self, _state: object, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
        """As torch's hooks: the mean of a bucket, in its place; or this rank's shard of it, where there are shards."""
        if self._thread is None:
            arguments = (self._waiting, torch.get_num_threads())
            self._thread = threading.Thread(target=_work, args=arguments, name="ringdp-compress", daemon=True)
            self._thread.start()
            weakref.finalize(self, self._waiting.put, None)
        number, flat, parameters = bucket.index(), bucket.buffer(), bucket.parameters()
        named = {self.names[p]: _laid_out(p, g) for p, g in zip(parameters, bucket.gradients(), strict=True)}
        begun: torch.futures.Future[None] = torch.futures.Future()
        # What a callback raises becomes the error of the backward pass; set_exception() would not.
        done = begun.then(lambda _: self._run(number, flat, named))
        self._waiting.put(begun)
        return done

    def _run(self, number: int, flat: Tensor, gradients: dict[str, Tensor]) -> Tensor:
        if self._failure:
            raise RuntimeError(f"DistributedDataParallel: compress={self.method} has failed before: {self._failure}")
        try:
            return self._average(number, flat, gradients)
        except BaseException as error:
            self._failure = str(error) or repr(error)
            raise

    def _average(self, number: int, flat: Tensor, gradients: dict[str, Tensor]) -> Tensor:
        begin, waited = time.perf_counter(), self.means.waited_s
        is_coded = self._kind is Kind.CODED
        sent, optimizer = gradients, self._optimizer()
        if optimizer is not None:
            optimizer.arrive([self._parameters[name] for name in gradients])
            sent = {name: optimizer.contribution(self._parameters[name], g) for name, g in gradients.items()}
        shards = self._shards[number] if self._shards is not None else None
        owners = shards.owners if shards is not None else None
        norms = Sent() if is_coded and self._coded % _NORMS_EVERY == 0 else None
        means = self.means.of(sent, self.steps, owners, norms) if is_coded else self.means.settling(sent, owners)
        if shards is not None:
            found = shards.shard(means, like=flat)
        else:
            found = flat
            for name, gradient in gradients.items():
                gradient.copy_(means[name][1].view(gradient.shape))
        if not is_coded:
            return found
        waited = self.means.waited_s - waited
        took = time.perf_counter() - begin
        shapes = {name: gradient.shape for name, gradient in gradients.items()}
        elements = sum(gradient.numel() for gradient in gradients.values())
        if norms is not None:
            self._norms[number] = Norms(self.steps, norms.meant, norms.error, *self._norms_of(means))
        self._entries[number] = Entry(
            bucket=number,
            elements=elements,
            bytes_whole=_bytes_whole(elements, self.ranks, halves=2 if owners is None else 1),
            bytes_sent=self.means.bytes_sent(shapes, self.steps, owners),
            codes=took - waited,
            way=waited,
            norms=self._norms[number],
        )
        return found

    def _norms_of(self, means: dict[str, Part]) -> tuple[float, float]:
        """Of means, as far as this rank has them, and of its residuals of the same elements."""
        residuals = self.means.residuals.of_rank
        parts = [residuals[name].flatten()[first:][: len(v)] for name, (first, v) in means.items() if name in residuals]
        return norm(values for _, values in means.values()), norm(parts)

    def ledger(self, exposed: float) -> Ledger:
        """Of the latest step that was compressed. exposed: of the latest one."""
        entries = [self._entries[number] for number in sorted(self._entries)]
        return Ledger(repr(self.method), self.ranks, self.steps, entries, exposed, list(self.decisions))


def _work(waiting: queue.SimpleQueue[torch.futures.Future[None] | None], threads: int) -> None:
    """Runs what waits, in its order. threads: for sums; a new thread would begin with another number."""
    torch.set_num_threads(threads)
    while (begun := waiting.get()) is not None:
        begun.set_result(None)


def _laid_out(parameter: Tensor, gradient: Tensor) -> Tensor:
    """A part of a bucket in the parameter's shape: it lies there in the order of the parameter's memory."""
    is_dense = torch.empty_like(parameter, device="meta").stride() == parameter.stride()
    return gradient.as_strided(parameter.shape, parameter.stride()) if is_dense else gradient


def cap_for(method: Method | None, args: Sequence[Any], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The wrapper's arguments; a PowerSGD has one bucket unless they say otherwise, so that factors travel together."""
    is_given = kwargs.get("bucket_cap_mb") is not None or len(args) >= STOCK_ARGUMENTS.index("bucket_cap_mb")
    return {**kwargs, "bucket_cap_mb": _ONE_BUCKET_MB} if is_in_one_bucket(method) and not is_given else kwargs


def is_in_one_bucket(method: Method | None) -> bool:
    """Whether it sends fewer collectives so."""
    return method is not None and isinstance(fixed(method), PowerSGD)


def _bytes_whole(elements: int, ranks: int, halves: int) -> int:
    """What a rank sends for a mean in float32. halves: 1 where each rank needs its part only."""
    return halves * (ranks - 1) * 4 * -(-elements // ranks)
