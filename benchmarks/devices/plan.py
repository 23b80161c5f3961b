"""One rank's device plan, as csrc/plan makes it, the layout of its memory, and the launch that it becomes."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from typing import Any

from devices.core import EPOCH_BYTES, FLAGS_BYTES, STREAM, Work


@dataclass(frozen=True)
class Problem:
    """A collective of `count` elements: of the tensor (all_reduce, broadcast), else of every rank's part."""

    collective: str = "all_reduce"
    algorithm: str = "direct"
    dtype: str = "float32"
    op: str = "SUM"
    world: int = 2
    count: int = 1024
    root: int = 0
    segment_bytes: int = 1 << 18

    @property
    def divisor(self) -> float:
        """What the sum is divided by; 0: nothing."""
        return float(self.world) if self.op == "AVG" else 0.0


@dataclass(frozen=True)
class DevicePlan:
    """One rank's steps, packed as kernels take them, and what they need; sizes in bytes."""

    rank: int
    algorithm: str
    element: int
    reduce: int
    input_bytes: int
    output_bytes: int
    stage_bytes: int
    pushed_bytes: int
    read_bytes: int
    written_bytes: int
    blocks: int  # that give every thread a pack
    steps: int
    packed: bytes
    text: str


def _extension() -> Any:
    from ringdp import _native

    return _native.load()


@cache
def plan_of(problem: Problem, rank: int) -> DevicePlan:
    """The plan of one rank. DistBackendError names what is refused."""
    return DevicePlan(rank=rank, **_extension().device_plan(rank=rank, **asdict(problem)))


def plans_of(problem: Problem) -> list[DevicePlan]:
    """Those of all ranks, in their order."""
    return [plan_of(problem, rank) for rank in range(problem.world)]


def blocks_for(multiprocessors: int, ranks: int) -> int:
    """What the backend launches for each rank at most, so that the kernels of all are on one device at once."""
    return int(_extension().device_blocks(multiprocessors, ranks))


ALIGNMENT = 256


@dataclass(frozen=True)
class Layout:
    """Offsets of the parts in bytes; `total` is what to allocate. Zero at first: epoch, flags and pushed."""

    world: int
    pushed_bytes: int  # for one writer and one parity
    epoch: int
    flags: int
    pushed: int
    stage: int
    input: int
    output: int
    total: int

    @classmethod
    def of(cls, world: int, plans: Sequence[DevicePlan]) -> Layout:
        """Room for each of these plans, one at a time."""
        pushed = max((plan.pushed_bytes for plan in plans), default=0)
        sizes = {
            "epoch": EPOCH_BYTES,
            "flags": FLAGS_BYTES,
            "pushed": 2 * world * pushed,
            "stage": max((plan.stage_bytes for plan in plans), default=0),
            "input": max((plan.input_bytes for plan in plans), default=0),
            "output": max((plan.output_bytes for plan in plans), default=0),
        }
        offsets, end = {}, 0
        for name, size in sizes.items():
            offsets[name] = end
            end += -(-size // ALIGNMENT) * ALIGNMENT
        return cls(world=world, pushed_bytes=pushed, total=end, **offsets)


@dataclass(frozen=True)
class Launch:
    """Addresses as one rank sees them. `flags`: of STREAM in host memory, else in the device memory of all ranks."""

    layout: Layout
    bases: Sequence[int]
    flags: Sequence[int]
    abort: int
    expired: int
    blocks: int = 1
    deadline_s: float = 10.0
    in_place: bool = False

    def at(self, **changes: object) -> Launch:
        """The same but for these fields."""
        return replace(self, **changes)  # type: ignore[arg-type]

    def for_plan(self, plan: DevicePlan, executor: int) -> Launch:
        """The same with as many blocks as the backend launches; STREAM: as many as fit."""
        return self.at(blocks=0 if executor == STREAM else min(self.blocks, plan.blocks))

    def input(self, rank: int) -> int:
        """The address of a rank's input."""
        return self.bases[rank] + self.layout.input

    def output(self, rank: int) -> int:
        """The address of a rank's result."""
        return self.input(rank) if self.in_place else self.bases[rank] + self.layout.output

    def work(self, plan: DevicePlan, divisor: float = 0.0, stream_epoch: int = 0) -> Work:
        """The launch of this plan. stream_epoch: STREAM's number of it, from 1."""
        layout = self.layout
        work = Work(
            rank=plan.rank,
            world=layout.world,
            blocks=self.blocks,
            steps=plan.steps,
            epoch=self.bases[plan.rank] + layout.epoch,
            stream_epoch=stream_epoch,
            deadline_ns=round(1e9 * self.deadline_s),
            divisor=divisor,
            pushed_bytes=layout.pushed_bytes,
            abort=self.abort,
            expired=self.expired,
        )
        for rank, base in enumerate(self.bases):
            work.input[rank], work.output[rank] = self.input(rank), self.output(rank)
            work.stage[rank], work.pushed[rank] = base + layout.stage, base + layout.pushed
            work.flags[rank] = self.flags[rank]
        ctypes.memmove(work.step, plan.packed, len(plan.packed))
        return work
