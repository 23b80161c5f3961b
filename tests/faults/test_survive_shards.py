"""Under ringdp.elastic.survive shards outlive their ranks: in shared memory, and as copies that other ranks keep."""

from __future__ import annotations

import gc
import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import dying
import pytest
import ringdp
import torch
import torch.distributed as dist
from churn import hash_of
from dying import (
    BETWEEN_WORLDS,
    CLIP,
    CUTTING,
    FATAL_STEP,
    IN_A_STEP,
    MICRO_BATCHES,
    SHARDS_IN_A_STEP,
    STEPS,
    Job,
    arrange_death,
    check,
    loss_of,
    network,
    train,
)
from ringdp.ddp.leaf_steps import LeafSteps
from ringdp.elastic.training import Training
from ringdp.zero import regrouped
from torch import nn


def at_stage(stage: int, made: Job, shards: str = "auto") -> Job:
    made.stage, made.shards = stage, shards
    return made


@pytest.mark.parametrize(
    ("point", "victim", "shards"),
    [
        pytest.param(point, victim, shards, marks=() if cell % 3 == victim and cell % 2 <= copies else pytest.mark.long)
        for copies, shards in enumerate(("copies", "auto"))
        for cell, point in enumerate([*IN_A_STEP, *SHARDS_IN_A_STEP])
        for victim in range(3)
    ],
)
def test_a_shard_outlives_its_rank(job, clipped, point, victim, shards):
    made = at_stage(1 + victim, job(3), shards)
    made.begin(point={victim: point})
    check(made.wait(), clipped, 2)


def saving(member: int, port: int, folder: str, stage: int, victim: int, when: int) -> tuple[str, list[Any]]:
    """On a rank: member `victim` dies before, in or after the first save: `when` 0, 1, 2."""

    def save(ddp: Any, optimizer: Any, step: int) -> None:
        dies = member == victim and step == 1
        if dies and when == 1:
            arrange_death(os, "fsync", "before", dying.running_step)
        if dies and when == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        ringdp.checkpoint.save(folder, ddp, optimizer, extra=step, keep=None)
        if dies:
            os.kill(os.getpid(), signal.SIGKILL)

    return train(member, port, stage=stage, save=save)


def resumed(folder: str, stage: int) -> str:
    """On a rank: from the earlier one of the checkpoints, on with ringdp.leaf."""
    ddp = ringdp.DistributedDataParallel(network(), micro_batches=MICRO_BATCHES, zero_stage=stage)
    optimizer = ringdp.ZeroOptimizer(ddp.parameters(), torch.optim.AdamW, lr=0.01)
    path = min(Path(folder).glob("checkpoint-*"))
    begin = 1 + ringdp.checkpoint.load(path, ddp, optimizer).extra
    assert begin == 2, begin

    @ringdp.elastic.survive(model=ddp, optimizer=optimizer, clip=CLIP)
    def run(step: int, leaves: Sequence[int]) -> None:
        for leaf in leaves:
            with ringdp.leaf(step, leaf):
                loss_of(ddp, step, leaf).backward()

    run(STEPS, first=begin)
    return hash_of(ddp, optimizer)


@pytest.mark.parametrize(
    ("stage", "victim", "when"),
    [
        pytest.param(*cell, marks=() if number in (3, 7) else pytest.mark.long)
        for number, cell in enumerate(
            (stage, victim, when) for stage in (1, 3) for victim in (0, 1) for when in range(3)
        )
    ],
)
def test_a_rank_that_dies_while_all_save(job, clipped, world_of, tmp_path, stage, victim, when):
    """The next world saves again; what was saved goes on, at another number of ranks, to the same bits."""
    made = job(3)
    made.begin(saving, str(tmp_path), stage, victim, when)
    check(made.wait(), clipped, 2)
    steps = [ringdp.checkpoint.read(path).extras[0] for path in sorted(tmp_path.glob("checkpoint-*"))]
    assert steps in ([1, 3], [1, 1, 3])
    assert world_of(2).run(resumed, str(tmp_path), stage) == [clipped] * 2


def in_a_pass(member: int, port: int) -> tuple[str, list[Any]]:
    """On a rank: member 1 dies in a forward pass, and the others notice when they gather the next unit."""
    original = nn.BatchNorm1d.forward

    def forward(module: nn.BatchNorm1d, x: torch.Tensor) -> torch.Tensor:
        if dying.running_step == FATAL_STEP and member == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(0.3 * (dying.running_step == FATAL_STEP))
        return original(module, x)

    nn.BatchNorm1d.forward = forward
    return train(member, port, stage=3)


def test_a_rank_that_dies_between_two_gathers_costs_no_bit(job, clipped):
    made = job(3)
    made.begin(in_a_pass)
    check(made.wait(), clipped, 2)


@pytest.mark.parametrize("point", [*BETWEEN_WORLDS, *CUTTING])
@pytest.mark.parametrize("stage", [pytest.param(1, marks=pytest.mark.long), pytest.param(2, marks=pytest.mark.long), 3])
@pytest.mark.parametrize("shards", [pytest.param("copies", marks=pytest.mark.long), "auto"])
def test_shards_outlive_a_rank_that_dies_while_they_are_cut(job, clipped, point, stage, shards):
    """Member 4 joins after the first step, member 0 or 4 dies on the way, and member 2 in a leaf: no neighbours."""
    made = at_stage(stage, job(4), shards)
    newcomer = made.add()
    dies = newcomer if point in ("as it has the state", "after its exam") else 0
    made.begin(point={2: "in a leaf", dies: point})
    check(made.wait(), clipped, 3)


def test_a_shard_that_has_died_with_its_copy_ends_the_job_with_an_error(job):
    made = at_stage(1, job(4), "copies")
    made.begin(point={1: "in a leaf", 2: "in a leaf"})
    outcomes = made.wait()
    assert len(outcomes) == 2
    for outcome in outcomes:
        assert "of the 4 ranks before, the shard of rank 2 is lost" in outcome.error and "checkpoint" in outcome.error


@pytest.mark.parametrize(
    "points",
    [
        ("in a leaf", "in a leaf", "in a leaf"),
        ("after the vote", "in apply", "as it has stepped"),
        ("before it gathers", "as it has stepped", "before it gathers"),
        ("as they are shared", "before the vote", "before the gradients are shared"),
        ("as it has gathered", "as it has gathered", "as it has gathered"),
    ],
)
@pytest.mark.parametrize("stage", [1, pytest.param(2, marks=pytest.mark.long), 3])
def test_shards_in_shared_memory_outlive_all_ranks_but_one(job, clipped, points, stage):
    made = at_stage(stage, job(4))
    made.begin(point=dict(zip((0, 2, 3), points, strict=True)))
    check(made.wait(), clipped, 1)


def taken_by_one(member: int, port: int, stage: int, when: int) -> tuple[str, list[Any]]:
    """On a rank: member 0 dies when it has taken its new shard, and the others believe that the vote has failed.

    when: before the first step, or after a death.
    """
    original_vote, original_take = regrouped.vote, ringdp.ZeroOptimizer._take_prepared
    votes = []

    def vote(made: Any) -> None:
        original_vote(made)
        votes.append(made)
        if member != 0 and len(votes) == when:
            time.sleep(0.3)
            raise dist.DistBackendError("given up")

    def take(optimizer: Any) -> None:
        original_take(optimizer)
        if member == 0 and len(votes) == when:
            waste = [ringdp.empty(1 << 14).fill_(7.0) for _ in range(8)]  # where the old shard was
            os.kill(os.getpid(), len(waste) and signal.SIGKILL)

    regrouped.vote, ringdp.ZeroOptimizer._take_prepared = vote, take
    return train(member, port, "in a leaf" if member == 2 and when == 2 else "", stage=stage)


@pytest.mark.parametrize(("stage", "when"), [(1, 1), (1, 2), (2, 2), (3, 1), (3, 2)])
def test_a_shard_that_only_a_dead_rank_has_taken_is_not_that_of_the_group_before(job, clipped, stage, when):
    made = job(4)
    made.begin(taken_by_one, stage, when)
    check(made.wait(), clipped, 4 - when)


def behind_a_dead_rank(member: int, port: int, stage: int) -> tuple[str, list[Any]]:
    """On a rank: member 0 dies when it has stepped, and the others have passed the vote, but have not begun."""
    original = dying.Training._vote

    def vote(training: Any) -> bool:
        found = original(training)
        if member != 0 and dying.running_step == FATAL_STEP and not training.recoveries:
            time.sleep(0.3)
            raise dist.DistBackendError("given up")
        return found

    dying.Training._vote = vote
    return dying.train(member, port, "" if member else "as it has stepped", stage=stage)


@pytest.mark.parametrize("stage", [1, 3])
def test_a_step_that_only_a_dead_rank_has_begun_is_made_by_all(job, clipped, stage):
    made = job(3)
    made.begin(behind_a_dead_rank, stage)
    check(made.wait(), clipped, 2)


def fails_alive(member: int, port: int, stage: int, where: str) -> tuple[str, list[Any]]:
    """On a rank: member 1 raises an exception, and drops all that it has."""

    def fail(*_: Any) -> None:
        raise ValueError("a mistake")

    if member == 1:
        owner, name = {"body": (LeafSteps, "end"), "apply": (Training, "step_optimizer")}[where]
        original = getattr(owner, name)
        setattr(owner, name, lambda *args: (fail if dying.running_step == FATAL_STEP else original)(*args))
    try:
        return train(member, port, stage=stage)
    finally:
        gc.collect()


@pytest.mark.parametrize("stage", [1, 3])
@pytest.mark.parametrize("where", ["body", "apply"])
def test_a_shard_outlives_the_training_of_its_rank(job, clipped, stage, where):
    made = job(3)
    made.begin(fails_alive, stage, where)
    outcomes = made.wait()
    assert "a mistake" in outcomes[1].error
    check([outcomes[0], outcomes[2]], clipped, 2)


@pytest.mark.parametrize(("ranks", "stage"), [(1, 1), (3, 1), (3, 2), (1, 3), (3, 3)])
def test_newcomers_get_shards(job, clipped, ranks, stage):
    made = at_stage(stage, job(ranks))
    made.add(), made.add()
    made.begin()
    check(made.wait(), clipped, ranks + 2)
