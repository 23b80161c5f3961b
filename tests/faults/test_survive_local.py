"""ringdp.elastic.survive_local: ranks die wherever they are, others come, and workers have the bits of one process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dying
import pytest
import ringdp
import torch.distributed as dist
from dying_local import (
    AT_THE_END,
    BETWEEN_WORLDS,
    CELLS,
    IN_A_ROUND,
    MEETING,
    STEPS,
    LocalJob,
    check_local,
    in_one_process,
    train_local,
)
from local_runs import arguments_of, differences, digests, inner_of, model_of, trained
from ringdp.elastic.local_training import LocalTraining
from ringdp.elastic.recovery import OUTER
from ringdp.local.workers import Workers

MEMORY = "the memory of host 0"
NAMES = [name for name in CELLS if name != "two workers"]


@pytest.fixture
def local_job(run_on_fresh_ranks) -> Callable[..., LocalJob]:
    return lambda ranks, hosts=(): LocalJob(ranks, run_on_fresh_ranks, hosts)


def of_many(points: list[str], victims: int) -> list:
    """(point, victim, cell): one of each point by default, with victims and cells by turns; all in the long run."""
    return [
        pytest.param(
            point,
            victim,
            NAMES[(number + victim) % len(NAMES)],
            marks=() if number % victims == victim else pytest.mark.long,
        )
        for number, point in enumerate(points)
        for victim in range(victims)
    ]


@pytest.mark.parametrize(("point", "victim", "name"), of_many(IN_A_ROUND, 3))
def test_a_rank_that_dies_in_a_round_costs_no_bit(local_job, point, victim, name):
    made = local_job(3)
    made.begin_local(name, {victim: point})
    recoveries = check_local(made.wait(), name, 2)
    for (recovery,) in recoveries:
        assert (recovery.epoch, set(recovery.members)) == (1, {0, 1, 2} - {victim})
        assert len(recovery.sources) in (2, 3) and {*recovery.sources.values()} == {MEMORY}
        assert recovery.cause and recovery.residuals_lost == 0
    if point == "after the meeting":
        assert {recovery.step for (recovery,) in recoveries} == {8}
    elif point in ("in a step", "before the exchange", "before the vote"):
        before = 6 if name == "in parts" and point != "in a step" else 4  # which has a meeting more
        assert {recovery.step for (recovery,) in recoveries} == {before}


@pytest.mark.parametrize(
    ("point", "name"),
    [
        pytest.param(point, NAMES[number // 2 % len(NAMES)], marks=() if number % 2 else pytest.mark.long)
        for number, point in enumerate(BETWEEN_WORLDS)
    ],
)
def test_a_rank_that_dies_while_a_world_begins_costs_no_bit(local_job, point, name):
    """Member 4 joins after the first round, member 0 or 4 dies on the way, and member 1 dies in a step."""
    made = local_job(4)
    newcomer = made.add()
    dies = newcomer if point in ("as it has the state", "as it has a new worker") else 0
    made.begin_local(name, {1: "in a step", dies: point})
    check_local(made.wait(), name, 3)


@pytest.mark.parametrize(
    ("points", "name"),
    [
        (("in a step", "in a step", "in a step"), "int8"),
        (("before the vote", "in the exchange", "while it keeps a worker"), "two bits"),
        (("after the vote", "after the meeting", "after the vote"), "in parts"),
    ],
)
def test_all_but_one_die_at_once(local_job, points, name):
    made = local_job(4)
    made.begin_local(name, dict(zip((0, 1, 3), points, strict=True)))
    check_local(made.wait(), name, 1)


def behind(member: int, port: int, name: str) -> tuple[list[Any], list[Any]]:
    """On a rank: as train_local(), but to member 1 a vote once seems to have failed that has passed for the others."""
    original = LocalTraining._vote

    def vote(training: Any) -> bool:
        found = original(training)
        if member == 1 and dying.running_step == MEETING and not training.recoveries:
            time.sleep(0.5)  # until the others have made the meeting
            raise dist.DistBackendError("given up")
        return found

    LocalTraining._vote = vote
    return train_local(member, port, name, false_alarm_s=0.1)


@pytest.mark.parametrize("name", ["int8", "in parts"])
def test_a_rank_that_is_a_meeting_behind_makes_the_one_that_it_has_prepared(local_job, name):
    made = local_job(3)
    made.begin(behind, name)
    recoveries = check_local(made.wait(), name, 3)
    assert recoveries[1][0].applied and not recoveries[0][0].applied
    assert all(not recovery.sources and not recovery.moved for (recovery,) in recoveries)


def far_behind(member: int, port: int, name: str, second_s: float) -> tuple[list[Any], list[Any]]:
    """On a rank: as train_local(), but member 1 makes each step of the second round in so many seconds."""
    original = Workers.make_step

    def make_step(workers: Any, *given: Any) -> None:
        if member == 1 and dying.running_step in range(4, 8):
            time.sleep(second_s)
        original(workers, *given)

    Workers.make_step = make_step
    return train_local(member, port, name)


@pytest.mark.long
def test_who_makes_up_for_lost_steps_is_waited_for_beyond_the_timeout(run_on_fresh_ranks):
    made = LocalJob(2, run_on_fresh_ranks, timeout_s=10.0)
    made.begin(far_behind, "two workers", 4.0)  # 16 s, but none without a step for longer than the timeout
    assert check_local(made.wait(120.0), "two workers", 2) == [[], []]


def far_away(member: int, port: int, name: str) -> tuple[list[Any], list[Any]]:
    """On a rank: as train_local(), but 8 workers make the first 4 steps on one rank in 16 s."""
    original = Workers.make_step

    def make_step(workers: Any, *given: Any) -> None:
        if dying.running_step < 4:
            time.sleep(0.5)
        original(workers, *given)

    Workers.make_step = make_step
    return train_local(member, port, name, held=member == 0)


@pytest.mark.long
def test_a_rank_that_joins_waits_for_a_meeting_that_is_further_away_than_the_timeout(run_on_fresh_ranks):
    made = LocalJob(1, run_on_fresh_ranks, timeout_s=10.0)
    made.add()
    made.begin(far_away, "plain")
    for of_rank in check_local(made.wait(120.0), "plain", 2):
        assert [recovery.members for recovery in of_rank] == [(0, 1)]


@pytest.mark.parametrize("point", AT_THE_END)
def test_a_rank_that_dies_when_all_steps_are_made_costs_no_bit(local_job, point):
    """But those that it had are with nobody, where all others had left."""
    made = local_job(3)
    made.begin_local("plain", {1: point})
    outcomes = made.wait()
    if point == "before the last barrier":
        check_local(outcomes, "plain", 2)
    assert [outcome.error for outcome in outcomes] == ["", ""]


@pytest.mark.parametrize(("ranks", "name"), [(1, "int8"), (3, "in parts")])
def test_newcomers_get_workers(local_job, ranks, name):
    made = local_job(ranks)
    made.add(), made.add()
    made.begin_local(name)
    for of_rank in check_local(made.wait(), name, ranks + 2):
        assert of_rank[-1].members == tuple(range(ranks + 2))
        assert not any(recovery.sources for recovery in of_rank) and of_rank[0].moved


def test_a_rank_more_than_workers_waits_until_it_is_needed(local_job):
    made = local_job(2)
    made.add()
    made.begin_local("two workers", {1: "before the vote"})
    recoveries = check_local(made.wait(), "two workers", 2)
    assert recoveries[-1][-1].members == (0, 2) and recoveries[-1][-1].sources == {1: MEMORY}


def test_a_checkpoint_that_a_death_has_interrupted_is_written_by_the_next_world(local_job, tmp_path, one_thread):
    made = local_job(3)
    made.begin_local("int8", {1: "as it saves"}, folder=str(tmp_path))
    for (recovery,) in check_local(made.wait(), "int8", 2):
        assert recovery.step == 8
    cell = CELLS["int8"]
    model = model_of(cell)
    resumed = ringdp.DiLoCo(model, inner_of(cell), seed=5, **arguments_of(cell))
    ringdp.checkpoint.load(tmp_path, model, resumed)
    assert resumed.steps == 8
    found = digests(trained(resumed, model, STEPS - 8).state_dict())
    assert differences([found], in_one_process("int8")) == []


def saving_alone(member: int, port: int, name: str, folder: str) -> tuple[list[Any], list[Any]]:
    """On a rank: `save` does not communicate; member 1 dies in the first one, when the others have done theirs."""

    def save(_: str, model: Any, local: Any) -> None:
        here, step = Path(folder), local.steps
        if member == 1:
            while len([*here.glob(f"{step}-*")]) < 2:
                time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGKILL)
        (here / f"{step}-{dist.get_rank()}-of-{dist.get_world_size()}").touch()

    ringdp.checkpoint.save = save
    return train_local(member, port, name, folder=folder)


def test_a_save_without_communication_is_repeated_by_all_where_one_has_died(run_on_fresh_ranks, tmp_path):
    made = LocalJob(3, run_on_fresh_ranks)
    made.begin(saving_alone, "plain", str(tmp_path))
    check_local(made.wait(), "plain", 2)
    assert {f"{step}-{rank}-of-2" for step in (4, 8) for rank in (0, 1)} < {file.name for file in tmp_path.iterdir()}


@pytest.mark.parametrize(("hosts", "name"), [((0, 0), "two bits"), ((0, 1), "int8")])
def test_all_die_at_once_and_come_back(local_job, hosts, name):
    made = local_job(2, hosts=hosts)
    made.late = [made.add(host) for host in sorted({*hosts})]
    made.begin_local(name, {0: "in a step", 1: "in a step"})
    made.wait_for_deaths([0, 1])
    recoveries = check_local(made.wait(), name, len(made.late))
    assert len(recoveries[0][-1].sources) == 8
    assert {*recoveries[0][-1].sources.values()} == {f"the memory of host {host}" for host in hosts}


def test_a_host_that_dies_without_copies_costs_bits_and_is_said(local_job):
    made = local_job(3, hosts=(0, 0, 1))
    made.begin_local("int8", {2: "in a step"})
    outcomes = made.wait()
    assert [outcome.error for outcome in outcomes] == ["", ""]
    for _, (recovery,) in (outcome.value for outcome in outcomes):
        assert recovery.sources == dict.fromkeys((5, 6, 7), OUTER) and recovery.residuals_lost > 0
        assert f"workers 5, 6, 7 from {OUTER}" in recovery.line()


@pytest.mark.parametrize("name", ["int8", "in parts"])
def test_a_host_that_dies_with_copies_elsewhere_costs_no_bit(local_job, name):
    made = local_job(4, hosts=(0, 0, 1, 1))
    made.begin_local(name, {2: "in a step", 3: "before the vote"}, copies=True)
    recoveries = check_local(made.wait(), name, 2)
    sources = {source for of_rank in recoveries for r in of_rank for source in r.sources.values()}
    assert sources == {"a copy of host 1 on host 0"}


def test_workers_wait_for_the_ranks_that_come_to_their_host(local_job):
    made = local_job(2, hosts=(0, 1))
    made.late = (made.add(host=1),)
    made.begin_local("int8", {1: "in a step"})
    made.wait_for_deaths([1])
    recoveries = check_local(made.wait(), "int8", 2)
    assert {*recoveries[0][-1].sources.values()} == {"the memory of host 1"}


@pytest.mark.long
@pytest.mark.parametrize("arguments", [("--mixed", "--seeds=0-2"), ("--lose", "--compress=int8")])
def test_churn(arguments):
    """Real processes under a real supervisor, killed at random moments."""
    path = os.pathsep.join([str(Path(ringdp.__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    program = [sys.executable, str(Path(__file__).parent / "churn_local.py"), "--steps=200", "--every=50"]
    done = subprocess.run([*program, *arguments], env={**os.environ, "PYTHONPATH": path}, timeout=600)
    assert done.returncode == 0
