"""`ringdp.leaf`: the scope of one micro-batch of a step, whichever rank runs it."""

from __future__ import annotations

import hashlib
import operator
import random
import struct
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch


class Running:
    """A leaf that is being run, and the parts of wrappers (ddp/leaf_steps.py) that have had a pass in it."""

    def __init__(self, step: int, index: int, seed: int) -> None:
        self.step, self.index, self.seed = step, index, seed
        self.parts: list[Any] = []

    def end(self) -> None:
        """It has ended without an exception."""
        for number, part in enumerate(self.parts):
            try:
                part.end(self)
            except BaseException:
                for other in self.parts[number + 1 :]:
                    other.abandon()
                raise


_running: ContextVar[Running | None] = ContextVar("ringdp.leaf", default=None)


def running() -> Running | None:
    """The leaf that this thread is in."""
    return _running.get()


def check_outside(what: str) -> None:
    """RuntimeError if this thread is in a leaf: "DistributedDataParallel: {what} inside ..."."""
    if (now := running()) is not None:
        raise RuntimeError(
            f"DistributedDataParallel: {what} inside ringdp.leaf({now.step}, {now.index}), which not all ranks run: "
            "do it between leaves"
        )


@contextmanager
def leaf(step: int, index: int, *, seed: int = 0) -> Iterator[None]:
    """Around the forward and backward pass of micro-batch `index` of a step, for wrappers with `micro_batches=M`.

    Each of the micro-batches 0..M-1 is run by one rank, whichever it is; a rank may run several in any order, or none.
    Then every rank calls optimizer.step(), or ddp.finish_step() where gradients are read before it (clipping, a
    GradScaler). `step` must not repeat within a run, as random numbers depend on it: inside, the generators of Python,
    numpy and torch start from (seed, step, index); outside nothing has been drawn from them.

    After an exception inside, the leaf has left nothing and may be run again; an error of the process group at its end
    leaves it where it is (with shard_leaves it ends the step). RuntimeError inside another leaf, ValueError where a
    number is none.
    """
    try:
        if bool in map(type, (step, index, seed)):
            raise TypeError
        step, index, seed = map(operator.index, (step, index, seed))
    except TypeError:
        said = f"ringdp.leaf({step!r}, {index!r}, seed={seed!r})"
        raise ValueError(f"{said}: step, index and seed must be whole numbers") from None
    if (outer := _running.get()) is not None:
        raise RuntimeError(
            f"ringdp.leaf({step}, {index}) inside ringdp.leaf({outer.step}, {outer.index}): end that first"
        )
    now = Running(step, index, seed)
    token = _running.set(now)
    try:
        with seeded(seed, step, index):
            yield
    except BaseException:
        for part in now.parts:
            part.abandon()
        raise
    finally:
        _running.reset(token)
    now.end()


@contextmanager
def seeded(*numbers: int) -> Iterator[None]:
    """Inside, the generators of Python, numpy (if it is loaded) and torch start from these numbers."""
    digest = hashlib.sha256(" ".join(map(str, numbers)).encode()).digest()
    numpy = sys.modules.get("numpy")
    python_state, numpy_state = random.getstate(), numpy.random.get_state() if numpy else None
    devices = list(range(torch.cuda.device_count())) if torch.cuda.is_initialized() else []
    with torch.random.fork_rng(devices):
        random.seed(digest)
        if numpy:
            numpy.random.seed(struct.unpack("<8I", digest))
        (number,) = struct.unpack_from("<q", digest)
        torch.default_generator.manual_seed(number)
        if devices:
            torch.cuda.manual_seed_all(number)
        try:
            yield
        finally:
            random.setstate(python_state)
            if numpy:
                numpy.random.set_state(numpy_state)
