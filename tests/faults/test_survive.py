"""ringdp.elastic.survive: ranks are killed at every point of a step and others join; the bits are those of one process.

The test's process is the supervisor: it sees which ranks end, and publishes the next world.
"""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
import ringdp
import torch
import torch.distributed as dist
from churn import hash_of
from ranks import Outcome, World, values_of
from ringdp.ddp.leaf_steps import LeafSteps
from ringdp.elastic import member as membership
from ringdp.elastic import training as module
from ringdp.elastic.member import Member
from ringdp.elastic.training import Training
from ringdp.elastic.worlds import Worlds
from ringdp.testing import one_process
from ringdp.zero import native, regrouped
from torch import nn

STEPS, MICRO_BATCHES, FATAL_STEP, CLIP = 4, 7, 2, 0.05
running_step = -1  # on a rank


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Dropout(0.2), nn.Linear(16, 3), nn.Linear(3, 1))


def loss_of(model: nn.Module, step: int, leaf: int) -> torch.Tensor:
    x = torch.randn(4, 8, generator=torch.Generator().manual_seed(1000 * step + leaf))
    return model(x).square().mean()


@pytest.fixture(scope="module")
def undisturbed() -> str:
    """The hash of one process."""
    return in_one_process()


@pytest.fixture(scope="module")
def clipped() -> str:
    """The same with gradients that are clipped."""
    return in_one_process(CLIP)


def in_one_process(clip: float = 0) -> str:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    losses = lambda model, rank, step, leaf: loss_of(model, step, leaf)  # noqa: E731
    clips = lambda step: ringdp.clip_grad_norm_(model.parameters(), clip) if clip else None  # noqa: E731
    one_process(model, optimizer, losses, steps=STEPS, micro_batches=MICRO_BATCHES, on_gradients=clips)
    torch.set_num_threads(threads)
    return hash_of(model, optimizer)


def train(
    member: int,
    port: int,
    point: str = "",
    held: bool = False,
    stage: int = 0,
    shards: str = "auto",
    false_alarm_s: float = 20.0,
    save: Callable[[Any, Any, int], object] | None = None,
) -> tuple[str, list[Any]]:
    """On a rank: the whole training as a member of the job whose store is at `port`; it dies at a point of POINTS.

    held: step 0 lasts until a newcomer has asked to join. stage, shards: of ZeRO. false_alarm_s: more than a busy
    machine takes to publish. save: of wrapper, optimizer and step, after every second one.
    """
    os.environ[membership.VARIABLE] = f"{member}@127.0.0.1:{port}"
    membership.FALSE_ALARM_S = false_alarm_s
    store = dist.TCPStore("127.0.0.1", port, is_master=False)
    ddp = ringdp.DistributedDataParallel(network(), micro_batches=MICRO_BATCHES, zero_stage=stage)
    optimizer = (
        ringdp.ZeroOptimizer(ddp.parameters(), torch.optim.AdamW, lr=0.01)
        if stage
        else torch.optim.AdamW(ddp.parameters(), lr=0.01)
    )
    if point:
        arrange_death(*{**POINTS, **POINTS_OF_SHARDS}[point])

    ended: list[int] = []
    clip = CLIP if stage else None
    keeps = {"patience": 20.0, "clip": clip, "shards": shards}
    saves = {"save": lambda step: save(ddp, optimizer, step), "save_every": 2} if save is not None else {}

    @ringdp.elastic.survive(model=ddp, optimizer=optimizer, after=ended.append, **keeps, **saves)
    def run(step: int, leaves: Sequence[int]) -> None:
        global running_step
        running_step = step
        if held and step == 0:
            store.set("began", "")
            store.wait(["newcomers"])
        for leaf in leaves:
            with ringdp.leaf(step, leaf):
                loss_of(ddp, step, leaf).backward()

    run(STEPS)
    assert ended == list(range(STEPS - len(ended), STEPS)), ended  # each step once, from the first one of this rank on
    return hash_of(ddp, optimizer), run.recoveries


# Where a rank may die: at a call of what, before or after it, in FATAL_STEP or whenever it comes first after a step.
POINTS = {
    "in a leaf": (LeafSteps, "end", "before", FATAL_STEP),
    "before the exchange": (LeafSteps, "finish", "before", FATAL_STEP),
    "in the exchange": (LeafSteps, "_share_buffers", "before", FATAL_STEP),
    "before the vote": (Training, "_vote", "before", FATAL_STEP),
    "after the vote": (Training, "_vote", "after", FATAL_STEP),
    "in apply": (Training, "step_optimizer", "before", FATAL_STEP),
    "after the step": (Training, "_commit", "after", FATAL_STEP),
    "as it leaves": (Member, "leave", "before", None),
    "before it is here": (Worlds, "gather", "before", None),
    "between here and the group": (Worlds, "gather", "after", None),
    "before it says where it is": (Training, "_exchange", "before", None),
    "after it has said so": (Training, "_exchange", "after", None),
    "as it sends the state": (module, "send", "before", None),
    "as it has the state": (module, "receive", "after", None),
    "before the leaves are dealt": (Training, "_deal_out", "before", None),
    "before it examines": (Training, "_digest_of_leaf", "before", None),
    "after its exam": (Training, "_digest_of_leaf", "after", None),
    "before the last barrier": (dist, "barrier", "before", None),
    "after the last barrier": (dist, "barrier", "after", None),
}
POINTS_OF_SHARDS = {
    "as it has stepped": (native, "run", "after", FATAL_STEP),
    "before the gradients are shared": (ringdp.ZeroOptimizer, "share_gradients", "before", FATAL_STEP),
    "as they are shared": (ringdp.ZeroOptimizer, "share_gradients", "after", FATAL_STEP),
    "before it gathers": (ringdp.ZeroOptimizer, "gather", "before", FATAL_STEP),
    "as it has gathered": (ringdp.ZeroOptimizer, "gather", "after", FATAL_STEP),
    "before shards are cut": (ringdp.ZeroOptimizer, "regroup", "before", None),
    "before it takes its new shard": (ringdp.ZeroOptimizer, "_take_prepared", "before", None),
    "as it has taken it": (ringdp.ZeroOptimizer, "_take_prepared", "after", None),
}
SHARDS_IN_A_STEP = [name for name, (*_, step) in POINTS_OF_SHARDS.items() if step is not None]
CUTTING = [name for name, (*_, step) in POINTS_OF_SHARDS.items() if step is None]
IN_A_STEP = [name for name, (*_, step) in POINTS.items() if step is not None]
AT_THE_END = [name for name in POINTS if "last barrier" in name]
OF_NEWCOMERS = ("receive", "_digest_of_leaf")  # calls in which one may die before its first step
BETWEEN_WORLDS = [name for name in POINTS if name not in (*IN_A_STEP, *AT_THE_END)]


def arrange_death(owner: Any, name: str, when: str, step: int | None) -> None:
    original = getattr(owner, name)

    def call(*args: Any, **kwargs: Any) -> Any:
        fatal = running_step == step or (step is None and (running_step >= 0 or name in OF_NEWCOMERS))
        if fatal and when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        result = original(*args, **kwargs)
        if fatal:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    setattr(owner, name, call)


class Job:
    """Members that train: the first ones are the ranks of one World, each newcomer that of another."""

    def __init__(self, ranks: int, make: Callable[..., World]) -> None:
        self.make, self.first = make, make(ranks)
        self.first.join()
        self.port = self.first.store.port
        self.worlds = Worlds(dist.TCPStore("127.0.0.1", self.port, is_master=False, timeout=timedelta(seconds=30)))
        self.worlds.begin(range(ranks), min_ranks=1)
        self.place = {member: (self.first, member) for member in range(ranks)}
        self.joined = set(self.place)
        self.outcomes: dict[int, Outcome] = {}  # of those that have not been killed
        self.stage, self.shards = 0, "auto"

    def add(self) -> int:
        """A newcomer; its number."""
        member, world = len(self.place), self.make(1)
        world.join()
        self.place[member] = (world, 0)
        return member

    def begin(
        self, call: Callable[..., Any] | None = None, *given: Any, point: Mapping[int, str] = MappingProxyType({})
    ) -> None:
        """call(member, port, *given) on every member; by default train(), where these members die at these points."""
        has_newcomers = len(self.place) > self.first.size
        for member, (world, rank) in self.place.items():
            is_first = world is self.first
            if not is_first:
                self.first.store.wait(["began"])
            own = given if call else (point.get(member, ""), has_newcomers and is_first, self.stage, self.shards)
            world.begin(call or train, member, self.port, *own, ranks=[rank])

    def wait(self, limit_s: float = 60.0) -> list[Outcome]:
        """Publishes worlds until all are done or dead; what those that were not killed have to say."""
        until, running = time.monotonic() + limit_s, set(self.place)
        asking: set[int] = set()
        while running:
            assert time.monotonic() < until, f"members {sorted(running)} are not done: {self.worlds.current()}"
            asked = self.worlds.requests()
            for request in asked:
                if request.what == "replace" and request.member in running:
                    world, rank = self.place[request.member]
                    world.kill(rank)
            asking |= {request.member for request in asked if request.what == "join"}
            came = asking & running - self.joined
            gone = {member for member in running if self._is_gone(member)}
            running -= gone | set(self.outcomes)
            self.joined = (self.joined | came) - gone
            if came or gone:
                self.worlds.publish(sorted(self.joined))
            if asking and asking | self.joined >= set(self.place):
                self.first.store.set("newcomers", "")
            time.sleep(0.002)
        return [self.outcomes[member] for member in sorted(self.outcomes)]

    def _is_gone(self, member: int) -> bool:
        """It was killed, or has failed, which ends the process of a program."""
        world, rank = self.place[member]
        if not world.has_answered(rank):
            return False
        try:
            (self.outcomes[member],) = world.finish([rank])
        except AssertionError:
            assert world.status(rank) == -signal.SIGKILL
            return True
        return bool(self.outcomes[member].error)


@pytest.fixture
def job(run_on_fresh_ranks) -> Callable[[int], Job]:
    return lambda ranks: Job(ranks, run_on_fresh_ranks)


def check(outcomes: list[Outcome], undisturbed: str, survivors: int) -> list[list[Any]]:
    """That all have these bits; the recoveries of each."""
    values = values_of(outcomes)
    assert [value for value, _ in values] == [undisturbed] * survivors
    return [recoveries for _, recoveries in values]


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
            arrange_death(os, "fsync", "before", running_step)
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
        if running_step == FATAL_STEP and member == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(0.3 * (running_step == FATAL_STEP))
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


def fails_alive(member: int, port: int, stage: int, where: str) -> tuple[str, list[Any]]:
    """On a rank: member 1 raises an exception, and drops all that it has."""

    def fail(*_: Any) -> None:
        raise ValueError("a mistake")

    if member == 1:
        owner, name = {"body": (LeafSteps, "end"), "apply": (Training, "step_optimizer")}[where]
        original = getattr(owner, name)
        setattr(owner, name, lambda *args: (fail if running_step == FATAL_STEP else original)(*args))
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
        gives_up = member == 1 and running_step == FATAL_STEP and not training.recoveries
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
    global loss_of
    original = loss_of
    if member == 2:
        loss_of = lambda model, step, leaf: original(model, step, leaf) * (1 + 1e-6)  # noqa: E731
    return train(member, port, held=member < 2)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (with_two_threads, "another number of threads (2) than the ranks that train"),
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
