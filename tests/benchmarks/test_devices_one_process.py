"""benchmarks/devices/one_process.py and one_rank.py over devices of host threads: everybody's bytes, records, refusals.

tests/gpu runs the same on a GPU, with every type and size.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import pytest
import torch
from devices.core import SHARE_AUTO, SHARE_FD, SPIN, STREAM, CoreError, open_core
from devices.one_process import OneProcess
from devices.one_rank import OneRank
from devices.plan import Problem
from ranks import HERE
from stand_in import loaded

COUNT = 4 * 101
SUMS = ["direct", "one_shot", "ring/rank"]


class StandInPlace:
    """The first device's streams."""

    def __init__(self, library: str) -> None:
        self._functions = loaded(library)
        self._used = 0

    def streams(self, count: int) -> list[int]:
        """The tests' streams, 1 to 7."""
        self._used = max(self._used, count)
        return [self._functions.stand_in_numbered(number + 1) for number in range(count)]

    def synchronize(self) -> None:
        """Waits for those that were asked for."""
        for number in range(self._used):
            self._functions.stand_in_synchronize(number + 1)


def inputs_of(world: int) -> list[torch.Tensor]:
    return [torch.randn(COUNT, generator=torch.Generator().manual_seed(rank)) for rank in range(world)]


def folded(inputs: list[torch.Tensor]) -> bytes:
    """Their sum in rank order."""
    total = inputs[0].clone()
    for one in inputs[1:]:
        total += one
    return total.numpy().tobytes()


def as_streams(library: str, world: int, executor: int) -> list[str]:
    """In one process: every algorithm and rank whose bytes are wrong, plans following one another."""
    place = StandInPlace(library)
    algorithms = [*SUMS, *(["push"] if executor == SPIN else [])] * 2
    problems = [Problem(algorithm=name, world=world, count=COUNT) for name in algorithms]
    inputs, wrong = inputs_of(world), []
    with OneProcess(open_core(), place, world, problems, executor) as ranks:
        for rank, tensor in enumerate(inputs):
            ranks.put(ranks.input(rank), tensor.numpy().tobytes())
        for problem in problems:
            for rank in range(world):
                ranks.put(ranks.output(rank), bytes(4 * COUNT))
            ranks.launch(problem)
            for rank in range(world):
                if ranks.get(ranks.output(rank), 4 * COUNT) != folded(inputs) or ranks.expired(rank).set:
                    wrong.append(f"rank {rank}: {problem.algorithm}")
    return wrong


def refusal_of(call: Callable[[], None]) -> str:
    """The sentence of a CoreError."""
    try:
        call()
    except CoreError as error:
        return str(error)
    return ""


def without_one(library: str) -> tuple[int, list[str]]:
    """In one process: what a rank says that waited in vain, whether an aborted wait leaves a record, and a refusal."""
    problem, said = Problem(world=2, count=COUNT), []
    with OneProcess(open_core(), StandInPlace(library), 2, [problem]) as ranks:
        ranks.launch(problem, [0], deadline_s=0.05)
        ranks.place.synchronize()
        said.append(refusal_of(ranks.check))
    with OneProcess(open_core(), StandInPlace(library), 2, [problem]) as ranks:
        ranks.launch(problem, [0], deadline_s=100)
        ranks.abort(0)
        ranks.place.synchronize()
        ranks.check()
        said.append(refusal_of(lambda: ranks.launch(problem, blocks=65)))
        return ranks.expired(0).set, said


def as_processes(library: str, sharing: int) -> list[str]:
    """On a rank: every algorithm whose bytes are wrong here."""
    place, core = StandInPlace(library), open_core()
    problems = [Problem(algorithm=name, world=HERE.size, count=COUNT) for name in SUMS]
    inputs, wrong = inputs_of(HERE.size), []
    with OneRank(core, place, problems, STREAM, sharing) as rank:
        pinned = core.host_alloc(4 * COUNT)
        memory = torch.frombuffer((ctypes.c_char * (4 * COUNT)).from_address(pinned.host), dtype=torch.float32)
        for problem in problems:
            memory.copy_(inputs[HERE.rank])
            core.copy(rank.input(), pinned.host, 4 * COUNT, rank.stream)
            rank.launch(problem)
            core.copy(pinned.host, rank.output(), 4 * COUNT, rank.stream)
            place.synchronize()
            if memory.numpy().tobytes() != folded(inputs) or rank.expired().set:
                wrong.append(problem.algorithm)
        core.host_free(pinned)
    return wrong


@pytest.mark.parametrize("executor", [SPIN, STREAM], ids=["SPIN", "STREAM"])
@pytest.mark.parametrize("world", [1, 2, 4])
def test_streams_of_one_process(world_of, stand_in, world, executor):
    assert world_of(1).run(as_streams, stand_in, world, executor) == [[]]


def test_who_does_not_come_is_named_and_what_is_bad_is_refused(world_of, stand_in):
    [(aborted, said)] = world_of(1).run(without_one, stand_in)
    assert aborted == 0
    assert "rank 0 waited in vain for rank 1 in step" in said[0] and "blocks is 65" in said[1]


@pytest.mark.parametrize("sharing", [SHARE_AUTO, SHARE_FD], ids=["IPC", "descriptors"])
@pytest.mark.parametrize("world", [2, 3])
def test_processes_that_share_a_device(world_of, stand_in, world, sharing):
    assert world_of(world).run(as_processes, stand_in, sharing) == [[]] * world
