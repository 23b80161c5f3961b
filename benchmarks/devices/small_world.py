#!/usr/bin/env python3
"""Every algorithm once, on one rank and on two of one process, with little data: small enough for compute-sanitizer.

    PYTHONPATH=python:benchmarks compute-sanitizer python -m devices.small_world

A tool that lets one kernel run at a time keeps kernels from waiting for each other: that is a skip, not a failure.
"""

from __future__ import annotations

import array
import sys
from collections.abc import Iterator

from devices.core import SPIN, STREAM, Core, CoreError, open_core
from devices.findings import NotHere, finding
from devices.one_process import OneProcess, Place
from devices.plan import Problem

PACKS = 16
DEADLINE_S = 3.0
ALGORITHMS = ("direct", "one_shot", "push", "ring/rank")
EXECUTORS = {"SPIN": SPIN, "STREAM": STREAM}


def cases() -> Iterator[tuple[str, Problem]]:
    """Executor and problem. STREAM has no push, and nothing ends a stream's wait for a kernel that is kept away."""
    for executor in EXECUTORS:
        for world in (1, 2):
            for algorithm in ALGORITHMS:
                if executor == "SPIN" or (algorithm != "push" and world == 1):
                    yield executor, Problem("all_reduce", algorithm, world=world, count=4 * PACKS)


def run(core: Core, place: Place, executor: str, problem: Problem) -> None:
    """One launch on ones; RuntimeError where the sum is wrong."""
    with OneProcess(core, place, problem.world, [problem], EXECUTORS[executor]) as ranks:
        ones = array.array("f", [1.0] * problem.count).tobytes()
        for rank in range(problem.world):
            ranks.put(ranks.input(rank), ones)
        ranks.launch(problem, deadline_s=DEADLINE_S)
        found = [ranks.get(ranks.output(rank), len(ones)) for rank in range(problem.world)]
        try:
            ranks.check()
        except CoreError as error:
            raise NotHere(str(error)) from None
    right = array.array("f", [float(problem.world)] * problem.count).tobytes()
    if wrong := [rank for rank, content in enumerate(found) if content != right]:
        raise RuntimeError(f"the sum of rank {wrong[0]} is wrong")


def run_all(core: Core, place: Place) -> None:
    """A finding for each case."""
    for executor, problem in cases():
        with finding(f"{executor}, {problem.algorithm}, world {problem.world}"):
            run(core, place, executor, problem)


if __name__ == "__main__":
    from devices.place import CudaPlace

    run_all(open_core(), CudaPlace())
    sys.exit(0)
