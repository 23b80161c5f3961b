"""ringdp.elastic.survive: ranks die at every point of a step and others join; the bits are those of one process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import dying
import pytest
import ringdp
import torch
import torch.distributed as dist
from dying import AT_THE_END, BETWEEN_WORLDS, FATAL_STEP, IN_A_STEP, MICRO_BATCHES, check, loss_of, network, train
from ringdp.elastic.training import Training


@pytest.mark.parametrize(
    ("point", "victim"),
    [
        pytest.param(point, victim, marks=() if number % 3 == victim else pytest.mark.long)
        for number, point in enumerate(IN_A_STEP)
        for victim in range(3)
    ],
)
def test_a_rank_that_dies_in_a_step_costs_no_bit(job, undisturbed, point, victim):
    made = job(3)
    made.begin(point={victim: point})
    recoveries = check(made.wait(), undisturbed, 2)
    for (recovery,) in recoveries:
        assert (recovery.epoch, set(recovery.members)) == (1, {0, 1, 2} - {victim})
        assert recovery.cause
        assert len(recovery.again) <= 3  # what the dead one can have held
    steps = {recovery.step for (recovery,) in recoveries}
    if point in ("before the exchange", "in the exchange", "before the vote"):
        assert steps == {FATAL_STEP} and recoveries[0][0].again
    elif point in ("in apply", "after the step"):
        assert steps == {FATAL_STEP + 1}


@pytest.mark.parametrize("point", BETWEEN_WORLDS)
def test_a_rank_that_dies_while_a_world_begins_costs_no_bit(job, undisturbed, point):
    """Member 4 joins after the first step, member 0 or 4 dies on the way, and member 1 dies in a leaf."""
    made = job(4)
    newcomer = made.add()
    dies = newcomer if point in ("as it has the state", "after its exam") else 0
    made.begin(point={1: "in a leaf", dies: point})
    check(made.wait(), undisturbed, 3)


@pytest.mark.parametrize(
    "points", [("in a leaf", "in a leaf"), ("before the vote", "in the exchange"), ("after the vote", "in apply")]
)
def test_two_that_die_at_once_cost_no_bit(job, undisturbed, points):
    made = job(4)
    made.begin(point=dict(zip((0, 2), points, strict=True)))
    check(made.wait(), undisturbed, 2)


@pytest.mark.parametrize("point", AT_THE_END)
def test_a_rank_that_dies_when_all_steps_are_applied_costs_nothing(job, undisturbed, point):
    made = job(3)
    made.begin(point={1: point})
    check(made.wait(), undisturbed, 2)


def test_one_that_is_left_alone_finishes(job, undisturbed):
    made = job(2)
    made.begin(point={0: "before the vote"})
    check(made.wait(), undisturbed, 1)


@pytest.mark.parametrize("ranks", [1, 3])
def test_newcomers_get_the_state(job, undisturbed, ranks):
    made = job(ranks)
    made.add(), made.add()
    made.begin()
    recoveries = check(made.wait(), undisturbed, ranks + 2)
    for of_rank in recoveries:
        assert of_rank[-1].members == tuple(range(ranks + 2))
        assert all(recovery.step > 0 and not recovery.again for recovery in of_rank), of_rank


def with_a_false_alarm(member: int, port: int, passes: bool, stage: int) -> tuple[str, list[Any]]:
    """On a rank: as train(), but member 1 gives its group up once though nobody has died.

    passes: when the vote has passed, so that the others apply the step and this one has not.
    """
    original = Training._vote

    def vote(training: Any) -> bool:
        gives_up = member == 1 and dying.running_step == FATAL_STEP and not training.recoveries
        found = original(training) if passes or not gives_up else False
        if gives_up:
            time.sleep(0.5 * passes)  # until the others have applied the step
            raise dist.DistBackendError("given up")
        return found

    Training._vote = vote
    return train(member, port, stage=stage, false_alarm_s=0.1)


@pytest.mark.parametrize("stage", [0, 2])
def test_a_false_alarm_makes_the_same_world_again(job, undisturbed, clipped, stage):
    made = job(3)
    made.begin(with_a_false_alarm, False, stage)
    for (recovery,) in check(made.wait(), clipped if stage else undisturbed, 3):
        assert (recovery.epoch, recovery.members, recovery.again) == (1, (0, 1, 2), [])


@pytest.mark.parametrize("stage", [0, 1, 3])
def test_a_rank_that_is_a_step_behind_applies_the_mean_that_it_has(job, undisturbed, clipped, stage):
    made = job(3)
    made.begin(with_a_false_alarm, True, stage)
    recoveries = check(made.wait(), clipped if stage else undisturbed, 3)
    assert recoveries[1][0].applied and not recoveries[0][0].applied


def always_alarmed(member: int, port: int) -> None:
    """On a rank: every vote fails."""

    def vote(training: Any) -> bool:
        raise dist.DistBackendError("no vote today")

    Training._vote = vote
    train(member, port, false_alarm_s=0.1)


def test_what_fails_again_and_again_is_no_fault_of_a_rank(job):
    made = job(2)
    made.begin(always_alarmed)
    for outcome in made.wait():
        assert "step 0 has failed 5 times though no rank has died" in outcome.error


def with_two_threads(member: int, port: int) -> Any:
    """On a rank: as train(), with a number of threads that changes bits."""
    torch.set_num_threads(2 if member == 2 else 1)
    return train(member, port, held=member < 2)


def with_another_loss(member: int, port: int) -> Any:
    """On a rank: as train(), where member 2 computes something else."""
    original = dying.loss_of
    if member == 2:
        dying.loss_of = lambda model, step, leaf: original(model, step, leaf) * (1 + 1e-6)
    return train(member, port, held=member < 2)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (with_two_threads, "from those that train. First difference: ranks 0, 1: 1 thread; rank 2: 2 threads"),
        (with_another_loss, "has other bits on this rank than on rank 0"),
    ],
)
def test_a_newcomer_whose_bits_would_differ_is_refused_by_name(job, undisturbed, call, said):
    made = job(2)
    made.add()
    made.begin(call)
    *members, refused = made.wait()
    assert said in refused.error
    check(members, undisturbed, 2)


def saving_alone(member: int, port: int, folder: str) -> tuple[str, list[Any]]:
    """On a rank: `save` does not communicate; member 1 dies in the first one, when the others have done theirs."""
    here = Path(folder)

    def save(ddp: Any, optimizer: Any, step: int) -> None:
        if member == 1:
            while len([*here.glob(f"{step}-*")]) < 2:
                time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGKILL)
        (here / f"{step}-{dist.get_rank()}-of-{dist.get_world_size()}").touch()

    return train(member, port, save=save)


def test_a_save_without_communication_is_repeated_by_all_where_one_has_died(job, undisturbed, tmp_path):
    made = job(3)
    made.begin(saving_alone, str(tmp_path))
    check(made.wait(), undisturbed, 2)
    assert {f"{step}-{rank}-of-2" for step in (1, 3) for rank in (0, 1)} < {file.name for file in tmp_path.iterdir()}


def test_a_body_that_leaves_a_leaf_out_is_refused_by_name(job):
    made = job(2)
    made.begin(leaves_out)
    for outcome in made.wait():
        assert "run(0, [" in outcome.error and "has returned without micro-batch" in outcome.error


def leaves_out(member: int, port: int) -> None:
    """On a rank: a function that does not run its last leaf."""
    ddp = ringdp.DistributedDataParallel(network(), micro_batches=MICRO_BATCHES)

    @ringdp.elastic.survive(model=ddp, optimizer=torch.optim.SGD(ddp.parameters(), lr=0.01))
    def run(step: int, leaves: Sequence[int]) -> None:
        for leaf in leaves[:-1]:
            with ringdp.leaf(step, leaf):
                loss_of(ddp, step, leaf).backward()

    run(2)


@pytest.mark.long
@pytest.mark.parametrize("seed", [1, 7])  # stage 1 in float32, stage 3 in bfloat16
def test_churn(seed, capfd):
    """Real processes under a real supervisor, killed at random moments."""
    arguments = ["--ranks", "4", "--steps", "60", "--kills", "4", "--seeds", str(seed), "--mixed"]
    path = os.pathsep.join([str(Path(ringdp.__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    program = Path(__file__).parent / "churn.py"
    done = subprocess.run(
        [sys.executable, str(program), *arguments], env={**os.environ, "PYTHONPATH": path}, timeout=300
    )
    assert done.returncode == 0
    assert capfd.readouterr().out.rstrip().endswith("equal")
