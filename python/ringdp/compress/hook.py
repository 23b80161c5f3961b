"""The communication hook of a wrapper with compress=...: a thread of its own compresses, sends and decodes buckets.

So the backward pass goes on meanwhile, until the next bucket is full. The process group is one of its own, too, as
other collectives of the program may come in another order than buckets.
"""

from __future__ import annotations

import math
import queue
import threading
import time
import weakref
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ringdp.compress.ledger import Entry, Ledger
from ringdp.compress.means import Means, means_of
from ringdp.compress.methods import Method, PowerSGD
from ringdp.ddp.modes import STOCK_ARGUMENTS, group_like, ring_options

_ONE_BUCKET_MB = 1 << 20


class Compression:
    """Collective: the constructor. names: of all parameters of the wrapper."""

    def __init__(self, group: dist.ProcessGroup, names: dict[Tensor, str], method: Method) -> None:
        self.method, self.ranks, self.rank = method, group.size(), group.rank()
        self.names = names
        self.group = group_like(group, ring_options(group, torch.device("cpu"))) if group.size() > 1 else None
        self.means: Means = means_of(self.group, method)
        self._steps: dict[int, int] = {}  # by bucket, that it has made
        self._first = 0  # step of a bucket that has made none here
        self._entries: dict[int, Entry] = {}
        self._failure = ""  # the first one: then this rank's codes no longer meet those of the others
        self._waiting: queue.SimpleQueue[torch.futures.Future[None] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    @property
    def steps(self) -> int:
        """That have been made."""
        return max(self._steps.values(), default=self._first)

    @steps.setter
    def steps(self, number: int) -> None:
        self._steps.clear()
        self._first = number

    def __call__(self, _state: object, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
        """As torch's hooks: the mean of a bucket, in its place."""
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
            self._average(number, gradients)
        except BaseException as error:
            self._failure = str(error)
            raise
        return flat

    def _average(self, number: int, gradients: dict[str, Tensor]) -> None:
        begin, step = time.perf_counter(), self._steps.get(number, self._first)
        means = self.means.of(gradients, step)
        for name, gradient in gradients.items():
            gradient.copy_(means[name])
        self._steps[number] = step + 1
        shapes = {name: gradient.shape for name, gradient in gradients.items()}
        elements = sum(gradient.numel() for gradient in gradients.values())
        owed = [self.means.owed.of_rank[name] for name in gradients if name in self.means.owed.of_rank]
        self._entries[number] = Entry(
            bucket=number,
            elements=elements,
            bytes_whole=_bytes_whole(elements, self.ranks),
            bytes_sent=self.means.bytes_sent(shapes, step),
            seconds=time.perf_counter() - begin,
            size=_norm(means.values()),
            owed=_norm(owed),
        )

    def ledger(self) -> Ledger:
        """Of the latest step."""
        return Ledger(repr(self.method), self.ranks, self.steps, [self._entries[n] for n in sorted(self._entries)])


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
    return {**kwargs, "bucket_cap_mb": _ONE_BUCKET_MB} if isinstance(method, PowerSGD) and not is_given else kwargs


def _bytes_whole(elements: int, ranks: int) -> int:
    """What a rank sends for a mean in float32."""
    return 2 * (ranks - 1) * 4 * -(-elements // ranks)


def _norm(tensors: Any) -> float:
    """Of all values together."""
    return math.hypot(*(float(torch.linalg.vector_norm(tensor)) for tensor in tensors))
