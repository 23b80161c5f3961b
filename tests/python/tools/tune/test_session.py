"""Ranks that die or give up are named; no process is left behind."""

from __future__ import annotations

import multiprocessing
import os
import signal
from dataclasses import replace

import pytest
from ringdp.tools.tune.microbenchmark import Microbenchmark
from ringdp.tools.tune.rank import Assignment
from ringdp.tools.tune.session import TuneError, measured

BENCHMARK = Microbenchmark("spin_us", 2, ({}, {}), (64,))
ASSIGNMENT = Assignment(2, (BENCHMARK, replace(BENCHMARK, field="other")), 0.01)
TIMES = {64: [[1.0, 2.0]]}


def plays_along(pipe, rank, assignment):
    """Two benchmarks, without a group."""
    assert os.path.isdir(assignment.folder)
    for _ in assignment.benchmarks if rank == 0 else ():
        pipe.send(TIMES)
    pipe.send(None)


def rank_1_dies(pipe, rank, assignment):
    """While rank 0 waits."""
    if rank == 1:
        os._exit(7)
    signal.pause()


def rank_0_gives_up(pipe, rank, assignment):
    """With a reason."""
    if rank == 0:
        pipe.send("rank 0: no memory")
    signal.pause()


def test_benchmarks_come_in_order_with_their_times():
    others = multiprocessing.active_children()
    found = list(measured(ASSIGNMENT, plays_along))
    assert found == [(benchmark, TIMES) for benchmark in ASSIGNMENT.benchmarks]
    assert set(multiprocessing.active_children()) <= set(others)


@pytest.mark.parametrize(
    ("entry", "named"), [(rank_1_dies, "rank 1 died with status 7"), (rank_0_gives_up, "rank 0: no memory")]
)
def test_a_rank_that_stops_is_named_and_all_are_ended(entry, named):
    others = multiprocessing.active_children()
    with pytest.raises(TuneError, match=named):
        list(measured(ASSIGNMENT, entry))
    assert set(multiprocessing.active_children()) <= set(others)
