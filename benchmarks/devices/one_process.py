"""All ranks of a collective in this process, on one device: a stream and an arena each, and plain addresses."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Protocol

from devices.core import FLAGS_BYTES, SPIN, STREAM, Core, CoreError, Expired, Pinned
from devices.plan import DevicePlan, Launch, Layout, Problem, blocks_for, plans_of

WORD_BYTES = 128  # the abort word has a cache line of its own before the record


class Place(Protocol):
    """Where streams come from."""

    def streams(self, count: int) -> list[int]:
        """Streams as the C interface takes them."""

    def synchronize(self) -> None:
        """Waits for all that is queued."""


def put(core: Core, place: Place, stream: int, address: int, content: bytes) -> None:
    """Bytes to a device, now."""
    pinned = core.host_alloc(max(1, len(content)))
    try:
        ctypes.memmove(pinned.host, content, len(content))
        core.copy(address, pinned.host, len(content), stream)
        place.synchronize()
    finally:
        core.host_free(pinned)


def get(core: Core, place: Place, stream: int, address: int, size: int) -> bytes:
    """Bytes of a device, after all that is queued."""
    pinned = core.host_alloc(max(1, size))
    try:
        place.synchronize()
        core.copy(pinned.host, address, size, stream)
        place.synchronize()
        return ctypes.string_at(pinned.host, size)
    finally:
        core.host_free(pinned)


class OneProcess:
    """Memory of `world` ranks for the plans of these problems. Use as a context; one thread.

    A launch is queued for all ranks, one after another; nothing is waited for.
    """

    def __init__(self, core: Core, place: Place, world: int, problems: Sequence[Problem], executor: int = SPIN) -> None:
        self.core, self.place, self.world, self.executor = core, place, world, executor
        self.layout = Layout.of(world, [plan for problem in problems for plan in plans_of(problem)])
        self.streams = place.streams(world)
        self.launches = 0
        self._stack = ExitStack()

    def __enter__(self) -> OneProcess:
        with ExitStack() as undo:
            self.core.kernels()  # all loaded now: a launch that had to load one would wait for kernels that poll
            self.host = [self._pinned(undo, WORD_BYTES + ctypes.sizeof(Expired)) for _ in range(self.world)]
            bases = [self._memory(undo) for _ in range(self.world)]
            flags = [base + self.layout.flags for base in bases]
            if self.executor == STREAM:
                flags = [self._pinned(undo, FLAGS_BYTES).device for _ in range(self.world)]
            blocks = blocks_for(self.core.describe().multiprocessors, self.world)
            self.ranks = [
                Launch(self.layout, bases, flags, own.device, own.device + WORD_BYTES, blocks) for own in self.host
            ]
            self._stack = undo.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self.place.synchronize()
        self._stack.close()

    def _pinned(self, undo: ExitStack, size: int) -> Pinned:
        pinned = self.core.host_alloc(size)
        undo.callback(self.core.host_free, pinned)
        return pinned

    def _memory(self, undo: ExitStack) -> int:
        base = self.core.alloc(self.layout.total)
        undo.callback(self.core.free, base)
        return base

    def launch(self, problem: Problem, ranks: Sequence[int] | None = None, **changes: object) -> None:
        """One collective on these ranks (default: all). `changes`: of Launch."""
        self.launches += 1
        for plan in plans_of(problem):
            if ranks is None or plan.rank in ranks:
                self.launch_on(self.streams[plan.rank], plan, problem.divisor, **changes)

    def launch_on(self, stream: int, plan: DevicePlan, divisor: float, **changes: object) -> None:
        """One rank's part of the current launch."""
        work = self.ranks[plan.rank].for_plan(plan, self.executor).at(**changes).work(plan, divisor, self.launches)
        self.core.run(work, plan.element, plan.reduce, self.executor, stream)

    def input(self, rank: int) -> int:
        """The device address of a rank's input."""
        return self.ranks[rank].input(rank)

    def output(self, rank: int) -> int:
        """The device address of a rank's result."""
        return self.ranks[rank].output(rank)

    def put(self, address: int, content: bytes) -> None:
        """Bytes to the device, now."""
        put(self.core, self.place, self.streams[0], address, content)

    def get(self, address: int, size: int) -> bytes:
        """Bytes of the device, after all that is queued."""
        return get(self.core, self.place, self.streams[0], address, size)

    def abort(self, rank: int) -> None:
        """Ends this rank's waits."""
        ctypes.c_uint32.from_address(self.host[rank].host).value = 1

    def expired(self, rank: int) -> Expired:
        """This rank's record; `set` is 0 while no wait has ended at its deadline."""
        return Expired.from_buffer_copy(ctypes.string_at(self.host[rank].host + WORD_BYTES, ctypes.sizeof(Expired)))

    def check(self) -> None:
        """CoreError when a wait of what has run so far ended at its deadline."""
        for rank in range(self.world):
            record = self.expired(rank)
            if record.set:
                raise CoreError(
                    f"rank {rank} waited in vain for rank {record.peer} in step {record.step} of launch "
                    f"{record.epoch}: kernels of all ranks were not on the device at once"
                )
