"""Real ranks run their benchmarks, or say what keeps them from it."""

from __future__ import annotations

import multiprocessing
from dataclasses import replace

import pytest
from ringdp.tools.tune.microbenchmark import Microbenchmark
from ringdp.tools.tune.rank import Assignment, main

FIELDS = ({"transport": "shm"}, {"transport": "shm", "slot_bytes": 4096})
BENCHMARK = Microbenchmark("slot_bytes_of_two", 2, FIELDS, (64, 4096), crossing=False, values=(1, 2))


def reports(assignment: Assignment) -> list[list[object]]:
    """What each rank sends, by rank."""
    spawner = multiprocessing.get_context("forkserver")
    spawner.set_forkserver_preload(["ringdp.tools.tune.rank"])
    pipes = [spawner.Pipe(duplex=False) for _ in range(assignment.size)]
    ranks = [spawner.Process(target=main, args=(pipe[1], rank, assignment)) for rank, pipe in enumerate(pipes)]
    for rank, (_, theirs) in zip(ranks, pipes, strict=True):
        rank.start()
        theirs.close()
    found: list[list[object]] = []
    for mine, _ in pipes:
        found.append([])
        while not found[-1] or isinstance(found[-1][-1], dict):
            assert mine.poll(60), found
            found[-1].append(mine.recv())
    for rank in ranks:
        rank.join()
    return found


def test_rank_0_reports_every_round_of_every_benchmark(tmp_path):
    benchmarks = (BENCHMARK, replace(BENCHMARK, shared=True))
    zero, one = reports(Assignment(2, benchmarks, 0.01, str(tmp_path)))
    assert one == [None]
    assert len(zero) == len(benchmarks) + 1 and zero[-1] is None
    for times in zero[:-1]:
        assert set(times) == set(BENCHMARK.sizes)
        assert len({len(rows) for rows in times.values()}) == 1, "every size takes part in every round"
        for rows in times.values():
            assert rows and all(len(row) == len(FIELDS) and min(row) > 0 for row in rows)


@pytest.mark.parametrize(
    ("fields", "named"), [({"slot_bytes": 1}, "slot_bytes"), ({"heap_bytes": 0}, "heap_bytes is 0")]
)
def test_what_cannot_be_measured_is_said_by_every_rank(tmp_path, fields, named):
    benchmark = replace(BENCHMARK, candidates=(fields,), shared=True)
    for rank, said in enumerate(reports(Assignment(2, (benchmark,), 0.01, str(tmp_path)))):
        assert said[-1].startswith(f"rank {rank}: ") and named in said[-1]
