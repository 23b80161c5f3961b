"""Device plans on one GPU: the bits of the serial fold in rank order, graphs of them, a rank that does not come."""

from __future__ import annotations

import time
from dataclasses import replace

import one_gpu as gpu
import pytest
import torch
from ranks import HERE

gpu.require()
from devices.core import SHARE_AUTO, SHARE_FD, SPIN, STREAM, CoreError
from devices.one_process import OneProcess
from devices.one_rank import OneRank
from devices.place import CudaPlace, tensor_at
from devices.plan import Problem, plan_of

# SPIN: on streams of one process, one kernel per rank.

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
    return OneProcess(gpu.open_core(), CudaPlace(), problems[0].world, problems, EXECUTORS[executor])


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


# STREAM: of several processes, over memory that they share.

KINDS = [
    ("all_reduce", "direct"),
    ("all_reduce", "one_shot"),
    ("all_reduce", "ring/rank"),
    ("reduce_scatter", "direct"),
    ("all_gather", "direct"),
    ("all_to_all", "direct"),
]


def problems_of(world: int) -> list[Problem]:
    return [
        Problem(collective, algorithm, gpu.name_of(dtype), world=world, count=packs * 16 // dtype.itemsize)
        for collective, algorithm in KINDS
        for dtype in (torch.float32, torch.bfloat16)
        for packs in (1, 5001)
    ]


def run_all(sharing: int) -> list[str]:
    """On a rank: every problem whose bytes were wrong here."""
    problems = problems_of(HERE.size)
    wrong = []
    with OneRank(gpu.open_core(), CudaPlace(), problems, sharing=sharing) as rank:
        for problem in problems:
            inputs = gpu.inputs_of(problem)
            own = inputs[HERE.rank]
            with torch.cuda.stream(rank.place.stream(0)):
                tensor_at(rank.input(), own.numel(), own.dtype).copy_(own)
            rank.launch(problem)
            rank.place.synchronize()
            right = gpu.expected(problem, inputs, HERE.rank)
            found = tensor_at(rank.output(), len(right), torch.uint8).cpu()
            if gpu.bytes_of(found) != right or rank.expired().set:
                wrong.append(str(problem))
    return wrong


@pytest.mark.parametrize("sharing", [SHARE_AUTO, SHARE_FD], ids=["IPC", "descriptors"])
@pytest.mark.parametrize("world", [2, 4, 8])
def test_processes_have_the_bits_of_the_serial_fold(world_of, world, sharing):
    if sharing == SHARE_FD and not gpu.open_core().describe().shares_fds:
        pytest.skip("this driver shares no memory by descriptors")
    assert world_of(world).run(run_all, sharing) == [[]] * world


# CUDA graphs: SPIN is captured and replayed, because the device counts its launches; STREAM refuses by name.


def captured(ranks: OneProcess, problem: Problem, rank: int) -> torch.cuda.CUDAGraph:
    """This rank's launch as a graph."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=ranks.place.stream(rank), capture_error_mode="thread_local"):
        ranks.launch_on(ranks.streams[rank], plan_of(problem, rank), problem.divisor)
    return graph


@pytest.mark.parametrize("algorithm", ["direct", "one_shot", "push", "ring/rank"])
@pytest.mark.parametrize("world", [2, 4])
def test_a_graph_is_replayed_with_other_inputs(world, algorithm):
    problem = Problem(algorithm=algorithm, world=world, count=4 * 1001, op="AVG")
    with OneProcess(gpu.open_core(), CudaPlace(), world, [problem], SPIN) as ranks:
        ranks.launch(problem)  # eagerly, so that replays do not begin with the first epoch
        graphs = [captured(ranks, problem, rank) for rank in range(world)]
        for turn in range(3):
            inputs = gpu.inputs_of(problem, str(turn))
            for rank, tensor in enumerate(inputs):
                ranks.put(ranks.input(rank), gpu.bytes_of(tensor))
            for rank, graph in enumerate(graphs):
                with torch.cuda.stream(ranks.place.stream(rank)):
                    graph.replay()
            for rank in range(world):
                assert ranks.get(ranks.output(rank), inputs[0].nbytes) == gpu.expected(problem, inputs, rank)


def test_stream_waits_are_not_captured():
    problem = Problem(count=64)
    with OneProcess(gpu.open_core(), CudaPlace(), 2, [problem], STREAM) as ranks:
        with pytest.raises(CoreError, match="STREAM cannot be captured"):
            captured(ranks, problem, 0)
        ranks.launch(problem)  # the stream is as it was
        ranks.place.synchronize()


# A rank that does not come: waits end at their deadline and say whom they waited for; the context survives.

WORLD, ABSENT = 4, 2
ALGORITHMS = ["direct", "one_shot", "push", "ring/rank"]
PUSHED = 4  # kPushedData, where a flag's slot would be


def four_ranks(*problems: Problem) -> OneProcess:
    return OneProcess(gpu.open_core(), CudaPlace(), WORLD, problems)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_record_names_a_rank_that_was_waited_for(algorithm):
    problem = Problem(algorithm=algorithm, world=WORLD, count=4 * 1000)
    others = [rank for rank in range(WORLD) if rank != ABSENT]
    with four_ranks(problem) as ranks:
        began = time.monotonic()
        ranks.launch(problem, others, deadline_s=0.2)
        ranks.place.synchronize()
        assert time.monotonic() - began < 30
        records = {rank: ranks.expired(rank) for rank in others}
        assert all(record.set == 2 and record.rank == rank for rank, record in records.items())
        # On a ring who is behind the absent one waits for a neighbour that waits.
        assert ABSENT in {record.peer for record in records.values()}
        for rank, record in records.items():
            assert record.epoch == 1 and record.seen < record.wanted
            assert record.step < plan_of(problem, rank).steps and record.slot <= PUSHED
            assert record.peer == ABSENT or algorithm.startswith("ring")


def test_the_abort_word_ends_waits_before_their_deadline():
    problem = Problem(world=WORLD, count=4 * 1000)
    with four_ranks(problem) as ranks:
        ranks.launch(problem, [0], deadline_s=60)
        began = time.monotonic()
        ranks.abort(0)
        ranks.place.synchronize()
        assert time.monotonic() - began < 30
        assert ranks.expired(0).set == 0  # nobody's deadline has passed


def test_the_context_survives():
    problem = Problem(world=WORLD, count=4 * 1000)
    with four_ranks(problem) as ranks:
        ranks.launch(problem, [0, 1], deadline_s=0.1)
        ranks.place.synchronize()
        assert ranks.expired(0).set == 2
    inputs = gpu.inputs_of(problem)
    with four_ranks(problem) as ranks:
        for rank, tensor in enumerate(inputs):
            ranks.put(ranks.input(rank), gpu.bytes_of(tensor))
        ranks.launch(problem)
        for rank in range(WORLD):
            assert ranks.get(ranks.output(rank), 16_000) == gpu.expected(problem, inputs, rank)


def test_bad_work_is_refused_and_nothing_is_queued():
    problem = Problem(world=WORLD, count=4 * 1000)
    with four_ranks(problem) as ranks:
        with pytest.raises(CoreError, match="blocks is 65"):
            ranks.launch(problem, blocks=65)
        ranks.launch(problem)
        ranks.place.synchronize()
        assert [ranks.expired(rank).set for rank in range(WORLD)] == [0] * WORLD
