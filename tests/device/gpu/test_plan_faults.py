"""A rank that does not come: waits end at their deadline and say whom they waited for; the context survives."""

from __future__ import annotations

import time

import one_gpu as gpu
import pytest

gpu.require()
from devices.core import CoreError
from devices.one_process import OneProcess
from devices.plan import Problem, plan_of

WORLD, ABSENT = 4, 2
ALGORITHMS = ["direct", "one_shot", "push", "ring/rank"]
PUSHED = 4  # kPushedData, where a flag's slot would be


def four_ranks(*problems: Problem) -> OneProcess:
    return OneProcess(gpu.open_core(), gpu.place(), WORLD, problems)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_record_names_a_rank_that_was_waited_for(algorithm):
    problem = Problem(algorithm=algorithm, world=WORLD, count=4 * 1000)
    others = [rank for rank in range(WORLD) if rank != ABSENT]
    with four_ranks(problem) as ranks:
        began = time.monotonic()
        ranks.launch(problem, others, deadline_s=1)  # a busy machine needs some of it to start the others
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
        with pytest.raises(CoreError, match="invalid value 65 for blocks"):
            ranks.launch(problem, blocks=65)
        ranks.launch(problem)
        ranks.place.synchronize()
        assert [ranks.expired(rank).set for rank in range(WORLD)] == [0] * WORLD
