#!/usr/bin/env python3
"""How long kernels that wait for each other (SPIN) take where a rank is late, and where the device is full.

    PYTHONPATH=python:benchmarks python -m devices.spin [PROBE ...]

All ranks are streams of one process. Probes are those of probe.py: each in a process of its own, with a deadline.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from statistics import median
from typing import Any, Protocol

from devices.core import Core, core_or_skip
from devices.one_process import OneProcess, Place
from devices.plan import Problem
from devices.probe import Probes, main

DEADLINE_S = 40.0  # of a probe
WORLD, COUNT = 2, 1 << 18  # of float32: more packs than 24 blocks have threads
ALGORITHMS = ("direct", "one_shot", "push", "ring/rank")
BLOCKS = (1, 8, 24)
SKEW_S, TIMES = 0.005, 7
LEAD_S = 0.002  # until a device is full


class BusyPlace(Place, Protocol):
    """With other work for the device, and waits for one stream alone."""

    def keep_busy(self) -> None:
        """Queues grids that refill every multiprocessor, of a lower priority, for tens of milliseconds."""

    def finish(self, stream: int) -> None:
        """Waits for what is queued on it."""


def after_a_late_rank(core: Core, place: BusyPlace) -> dict[str, Any]:
    """Microseconds from the launch of the last rank, milliseconds behind the others, until all are done."""
    facts = {}
    room = core.describe().multiprocessors // WORLD
    *others, late = range(WORLD)
    for algorithm in ALGORITHMS:
        problem = Problem("all_reduce", algorithm, world=WORLD, count=COUNT)
        with OneProcess(core, place, WORLD, [problem]) as ranks:
            for blocks in [number for number in BLOCKS if number <= room]:
                took = []
                for _ in range(TIMES):
                    ranks.launch(problem, others, blocks=blocks)
                    time.sleep(SKEW_S)
                    begin = time.monotonic()
                    ranks.launch(problem, [late], blocks=blocks)
                    place.synchronize()
                    took.append(time.monotonic() - begin)
                ranks.check()
                facts[f"us, {algorithm}, {blocks} blocks"] = round(1e6 * median(took), 1)
    return facts


class Highest:
    """Streams of the highest priority, as the backend has them, instead of the place's."""

    def __init__(self, core: Core, place: BusyPlace) -> None:
        self._core, self._place = core, place
        self._streams: list[int] = []

    def streams(self, count: int) -> list[int]:
        """The first so many, the same at every call."""
        while len(self._streams) < count:
            self._streams.append(self._core.stream())
        return self._streams[:count]

    def synchronize(self) -> None:
        """Waits for these, and not for other work of the device."""
        for stream in self._streams:
            self._place.finish(stream)


def on_a_full_device(core: Core, place: BusyPlace) -> dict[str, Any]:
    """Microseconds until a plan of as many blocks as the backend launches has run: alone, and while other grids fill
    the device, whose blocks have to make room for the plan's.
    """
    problem = Problem("all_reduce", "direct", world=WORLD, count=COUNT)
    own = Highest(core, place)
    facts: dict[str, Any] = {}
    with OneProcess(core, own, WORLD, [problem]) as ranks:
        facts["blocks of each rank"] = ranks.ranks[0].blocks
        for name, fill in (("alone", lambda: None), ("beside other grids", place.keep_busy)):
            took = []
            for _ in range(TIMES):
                fill()
                time.sleep(LEAD_S)
                begin = time.monotonic()
                ranks.launch(problem)
                own.synchronize()
                took.append(time.monotonic() - begin)
                place.synchronize()
            facts[f"us, {name}"] = round(1e6 * median(took), 1)
        ranks.check()
    return facts


def on_a_gpu(measure: Callable[[Core, BusyPlace], dict[str, Any]]) -> dict[str, Any]:
    """With torch's device."""
    from devices.place import CudaPlace

    return measure(core_or_skip(), CudaPlace())


PROBES: Probes = {
    "a rank that is late": (lambda: on_a_gpu(after_a_late_rank), {}),
    "a device that is full": (lambda: on_a_gpu(on_a_full_device), {}),
}


if __name__ == "__main__":
    sys.exit(main("devices.spin", PROBES, DEADLINE_S))
