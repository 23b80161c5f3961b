"""What is asked of a device plan, and one rank's plan, as csrc/plan makes it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import cache
from typing import Any


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
        """Of the sum; 0: none."""
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
    """What the backend launches for each rank, so that the kernels of all are on one device at once."""
    return int(_extension().device_blocks(multiprocessors, ranks))
