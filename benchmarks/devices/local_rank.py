"""One process that is all ranks, a stream each: the limits of the device's memory, and plans run by SPIN.

python -m devices.local_rank WORLD      (started by benchmarks/gpu.py)
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import torch

from devices.cell import ELEMENT_BYTES, Cell
from devices.core import SPIN, Core, open_core
from devices.one_process import OneProcess
from devices.place import CudaPlace, Replay, fill, tensor_at, wrong_in_sum
from devices.plan import Problem, plan_of
from devices.worker import Candidate, serve
from devices.zero_step import FusedStep, SeparateStep

ALGORITHMS = {"threads": "direct", "threads one_shot": "one_shot", "threads push": "push", "threads ring": "ring/rank"}


class Limit:
    """What the device's memory carries: as many bytes as the cell must move, in one kernel of torch."""

    def __init__(self, name: str, place: CudaPlace, call: Callable[[torch.Tensor, torch.Tensor], object]) -> None:
        self.name, self._place, self._call = name, place, call
        self._replays: dict[int, Replay] = {}

    def open(self, cell: Cell) -> int:
        """Memory; nothing to check."""
        elements = cell.least_bytes // 2 // ELEMENT_BYTES
        self._memory = [torch.ones(elements, device="cuda") for _ in range(2)]
        return 0

    def run(self, calls: int) -> tuple[float, float]:
        """As many sweeps."""
        stream = self._place.stream(0)
        if calls not in self._replays:
            self._replays[calls] = Replay([stream], lambda _: self._call(*self._memory), calls)
        return 0.0, self._replays[calls].seconds()

    def close(self) -> None:
        """Gives the memory back."""
        self._replays.clear()
        self._memory = []


class Spin:
    """An all_reduce plan, one kernel for every rank, all on the device at once."""

    def __init__(self, name: str, world: int, core: Core, place: CudaPlace) -> None:
        self.name, self._world, self._core, self._place = name, world, core, place
        self._replays: dict[int, Replay] = {}

    def open(self, cell: Cell) -> int:
        """Memory, one checked call."""
        self._problem = Problem("all_reduce", ALGORITHMS[self.name], world=self._world, count=cell.count)
        self._ranks = OneProcess(self._core, self._place, self._world, [self._problem], SPIN)
        self._ranks.__enter__()
        for rank in range(self._world):
            fill(tensor_at(self._ranks.input(rank), cell.count, torch.float32), rank)
        torch.cuda.synchronize()
        self._ranks.launch(self._problem)
        torch.cuda.synchronize()
        outputs = [tensor_at(self._ranks.output(rank), cell.count, torch.float32) for rank in range(self._world)]
        return sum(wrong_in_sum(output, self._world) for output in outputs)

    def run(self, calls: int) -> tuple[float, float]:
        """So many launches on every rank's stream."""
        if calls not in self._replays:
            streams = [self._place.stream(rank) for rank in range(self._world)]
            self._replays[calls] = Replay(streams, self._launch, calls)
        seconds = self._replays[calls].seconds()
        self._ranks.check()
        return 0.0, seconds

    def _launch(self, rank: int) -> None:
        self._ranks.launch_on(self._ranks.streams[rank], plan_of(self._problem, rank), 0.0)

    def close(self) -> None:
        """Gives the memory back."""
        self._replays.clear()
        self._ranks.__exit__()


def candidates() -> list[Candidate]:
    """All candidates of one process."""
    world, place, core = int(sys.argv[1]), CudaPlace(), open_core()
    core.kernels()
    limits = [
        Limit("copy", place, lambda a, b: b.copy_(a)),
        Limit("sweep", place, lambda a, _: a.mul_(1.0)),
    ]
    steps = [step(world, core, place) for step in (FusedStep, SeparateStep)]
    return [*limits, *(Spin(name, world, core, place) for name in ALGORITHMS), *steps]


if __name__ == "__main__":
    serve(candidates)
