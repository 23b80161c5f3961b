"""Device plans on streams of one process, one GPU: the bits of the serial fold in rank order, and moves of any type."""

from __future__ import annotations

from dataclasses import replace

import one_gpu as gpu
import pytest

gpu.require()
from devices.core import SPIN, STREAM
from devices.one_process import OneProcess
from devices.plan import Problem

SUMS = [
    ("all_reduce", "direct"),
    ("all_reduce", "one_shot"),
    ("all_reduce", "push"),
    ("all_reduce", "ring/rank"),
    ("reduce_scatter", "direct"),
    ("reduce_scatter", "ring/rank"),
    ("reduce", "direct"),
    ("reduce", "one_shot"),
]
MOVES = ["broadcast", "all_gather", "all_to_all", "gather", "scatter"]
PACKS = [1, 13, 5001]  # of 16 bytes: fewer than blocks, uneven, more than one kernel holds at a time
EXECUTORS = {"SPIN": SPIN, "STREAM": STREAM}


def ranks_of(problems: list[Problem], executor: str = "SPIN") -> OneProcess:
    return OneProcess(gpu.open_core(), gpu.place(), problems[0].world, problems, EXECUTORS[executor])


def check(ranks: OneProcess, problem: Problem, label: str = "", in_place: bool = False) -> None:
    """Runs it on fresh inputs and compares every rank's bytes."""
    inputs = gpu.inputs_of(problem, label)
    for rank, tensor in enumerate(inputs):
        ranks.put(ranks.input(rank), gpu.bytes_of(tensor))
    ranks.launch(problem, in_place=in_place)
    for rank in range(problem.world):
        right = gpu.expected(problem, inputs, rank)
        if not gpu.has_output(problem, rank):
            continue
        found = ranks.get(ranks.input(rank) if in_place else ranks.output(rank), len(right))
        assert found == right, f"rank {rank} of {problem}"
    assert [ranks.expired(rank).set for rank in range(problem.world)] == [0] * problem.world


@pytest.mark.parametrize("world", gpu.WORLDS)
@pytest.mark.parametrize(("collective", "algorithm"), SUMS)
def test_sums_have_the_bits_of_the_serial_fold(world, collective, algorithm):
    problems = [
        Problem(collective, algorithm, gpu.name_of(dtype), op, world, packs * 16 // dtype.itemsize)
        for dtype in gpu.SUMMED
        for op in (("SUM", "AVG") if dtype.is_floating_point else ("SUM",))
        for packs in PACKS
    ]
    with ranks_of(problems) as ranks:
        for problem in problems:
            check(ranks, problem)


@pytest.mark.parametrize("world", gpu.WORLDS)
@pytest.mark.parametrize("collective", MOVES)
def test_any_type_is_moved(world, collective):
    problems = [
        Problem(collective, "direct", dtype, "SUM", world, 16 * packs, root=world - 1)
        for dtype in ("uint8", "bool", "float64")
        for packs in PACKS
    ]
    with ranks_of(problems) as ranks:
        for problem in problems:
            check(ranks, problem)


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("world", [2, 8])
def test_plans_follow_one_another(world, executor):
    algorithms = ["direct", "one_shot", "ring/rank", *(["push"] if executor == "SPIN" else [])]
    problems = [Problem("all_reduce", algorithm, world=world, count=4 * 999) for algorithm in algorithms]
    with ranks_of(problems, executor) as ranks:
        for turn in range(12):
            check(ranks, problems[turn % len(problems)], label=str(turn))


@pytest.mark.parametrize("executor", EXECUTORS)
def test_in_place(executor):
    problem = Problem(world=4, count=4 * 5001)
    with ranks_of([problem], executor) as ranks:
        check(ranks, problem, in_place=True)


def test_many_launches_without_a_wait_between():
    """Epochs are counted on the device: the sum of sums comes out only if every launch saw the one before."""
    problem = Problem(world=4, count=4 * 501, dtype="int64")
    with ranks_of([problem]) as ranks:
        inputs = gpu.inputs_of(problem)
        for rank, tensor in enumerate(inputs):
            ranks.put(ranks.input(rank), gpu.bytes_of(tensor))
        for _ in range(50):
            ranks.launch(problem, in_place=True)
        total = gpu.fold(inputs, "SUM")
        for _ in range(49):
            total = total * 4  # int64 wraps, here and there
        for rank in range(4):
            assert ranks.get(ranks.input(rank), total.nbytes) == gpu.bytes_of(total)


def test_the_rotated_ring_has_one_result_for_all_ranks():
    problem = Problem("all_reduce", "ring/rotated", world=4, count=4 * 5001)
    whole = replace(problem, dtype="int32")
    with ranks_of([problem, whole]) as ranks:
        check(ranks, whole)
        for rank, tensor in enumerate(gpu.inputs_of(problem)):
            ranks.put(ranks.input(rank), gpu.bytes_of(tensor))
        ranks.launch(problem)
        assert len({ranks.get(ranks.output(rank), 16 * 5001) for rank in range(4)}) == 1
