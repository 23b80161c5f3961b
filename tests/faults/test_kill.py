"""A rank that is killed: a PeerLost on every survivor within a second, naming rank and pid; nothing stays behind."""

from __future__ import annotations

import os
import re
import signal
import time
from datetime import timedelta
from pathlib import Path

import pytest
import ringdp
import torch
import torch.distributed as dist
from ranks import HERE, Outcome, World, leave
from torch import nn

IN_TIME_S = 5.0  # what a busy machine may take; without notice it would be the group's minute
DESTROY_S = 2.0
LARGE = 1 << 22
VICTIMS = [0, 2]


def train(steps: int, count: int) -> int:
    """On a rank: all-reduces, checked."""
    for step in range(steps):
        tensor = torch.full((count,), float(step + HERE.rank))
        dist.all_reduce(tensor)
        assert float(tensor[-1]) == sum(step + rank for rank in range(HERE.size))
    return steps


def trade(steps: int, count: int) -> int:
    """On a rank: messages to and from every other rank, checked."""
    others = [rank for rank in range(HERE.size) if rank != HERE.rank]
    for step in range(steps):
        got = {rank: torch.zeros(count) for rank in others}
        work = [dist.irecv(tensor, rank) for rank, tensor in got.items()]
        work += [dist.isend(torch.full((count,), float(step + HERE.rank)), rank) for rank in others]
        for each in work:
            each.wait()
        assert all(float(tensor[-1]) == step + rank for rank, tensor in got.items())
    return steps


def start_children() -> int:
    """On a rank: a forked child that holds all its descriptors and outlives it; the child's pid."""
    child = os.fork()
    if child == 0:
        time.sleep(30)
        os._exit(0)
    return child


def what_is_open() -> tuple[list[str], str]:
    """On a rank: files that are open or mapped, and child processes."""
    names = set()
    for fd in os.listdir("/proc/self/fd"):
        try:
            names.add(os.readlink(f"/proc/self/fd/{fd}"))
        except FileNotFoundError:
            continue  # the listing's own
    for line in Path("/proc/self/maps").read_text().splitlines():
        names.update(line.split(maxsplit=5)[5:])
    return sorted(names), Path("/proc/thread-self/children").read_text().strip()


def check_survivors(world: World, victim: int, killed: float, outcomes: list[Outcome]) -> None:
    """Every survivor was told in time who died, and can end its group in time."""
    named = f"rank {victim} (pid {world.pid(victim)} on "
    for outcome in outcomes:
        assert "PeerLost: " in outcome.error, outcome.error
        assert outcome.error.startswith("DistBackendError: "), outcome.error
        assert named in outcome.error, outcome.error
        late = outcome.ended - killed
        assert late < IN_TIME_S, f"rank {outcome.rank} was told after {late:.2f} s"
    survivors = [outcome.rank for outcome in outcomes]
    refused = world.attempt(train, 1, 4, ranks=survivors)
    assert all("PeerLost: " in outcome.error and named in outcome.error for outcome in refused)
    assert all("(this rank called all_reduce(SUM, float32 x 4) #" in outcome.error for outcome in refused), refused
    assert max(world.run(leave, ranks=survivors)) < DESTROY_S
    assert all(children == "" for _, children in world.run(what_is_open, ranks=survivors))


def survivors_of(victim: int) -> list[int]:
    return [rank for rank in range(4) if rank != victim]


@pytest.mark.parametrize("victim", VICTIMS)
@pytest.mark.parametrize("steps_before", [0, 5])
def test_while_nobody_calls(make_world, victim, steps_before):
    world = make_world()
    world.run(train, steps_before, 1000)
    killed = world.kill(victim)
    outcomes = world.attempt(train, 1, 1000, ranks=survivors_of(victim))
    check_survivors(world, victim, killed, outcomes)


@pytest.mark.parametrize("victim", VICTIMS)
def test_while_the_others_wait_for_it(make_world, victim):
    world = make_world()
    world.run(train, 1, 1000)
    world.begin(train, 1, LARGE, ranks=survivors_of(victim))
    time.sleep(0.2)
    killed = world.kill(victim)
    check_survivors(world, victim, killed, world.finish(survivors_of(victim)))


@pytest.mark.parametrize("victim", VICTIMS)
@pytest.mark.parametrize("count", [1000, LARGE])
@pytest.mark.parametrize("task", [train, trade])
def test_in_the_middle_of_a_loop(make_world, task, victim, count):
    world = make_world()
    world.run(task, 1, count)
    world.begin(task, 1_000_000, count)
    time.sleep(0.4)
    killed = world.kill(victim)
    check_survivors(world, victim, killed, world.finish(survivors_of(victim)))


def make_group(how: str) -> None:
    """On a rank: a group of all, for which one waits half an hour."""
    if how == "new_group":
        dist.new_group(range(HERE.size), timeout=timedelta(minutes=30))
    else:
        dist.group.WORLD.split_group(list(range(HERE.size)), timedelta(minutes=30), None, "all")


@pytest.mark.parametrize("how", ["new_group", "split_group"])
@pytest.mark.parametrize("goodbye", [False, True])
def test_while_a_group_is_made(make_world, how, goodbye):
    """Its other groups tell: of one that died, and of one that has left them and ended since."""
    world = make_world(3)
    world.run(train, 1, 1000)
    if goodbye:
        world.run(leave, ranks=[2])
    world.begin(make_group, how, ranks=[0, 1])
    killed = world.kill(2)
    for outcome in world.finish([0, 1]):
        assert "PeerLost: " in outcome.error, outcome.error
        assert f"rank 2 (pid {world.pid(2)} on " in outcome.error, outcome.error
        assert outcome.ended - killed < IN_TIME_S


def learn(victim: int, stage: int) -> tuple[list[tuple[str, ...]], str]:
    """On a rank: steps, before the third of which one rank is killed: the names in each bucket, and what is told."""
    model = nn.Sequential(nn.Linear(300, 300), nn.Linear(300, 2))
    ddp = ringdp.DistributedDataParallel(model, bucket_cap_mb=0.3, zero_stage=stage)
    buckets = []
    try:
        for step in range(3):
            if step == 2 and victim == HERE.rank:
                os.kill(os.getpid(), signal.SIGKILL)
            ddp(torch.ones(1, 300)).sum().backward()
            buckets = [bucket.parameters for bucket in ddp.explain().buckets] if stage < 3 else []
    except dist.DistBackendError as error:
        return buckets, str(error)
    return buckets, ""


@pytest.mark.parametrize("stage", [0, 2, 3])
def test_in_training(run_on_fresh_ranks, stage):
    """Errors say which bucket or unit this rank was at, and in which collective."""
    world = run_on_fresh_ranks(3, transport="tcp")
    world.join()
    world.begin(learn, 2, stage)
    for buckets, told in (outcome.value for outcome in world.finish([0, 1])):
        assert "PeerLost: " in told and f"rank 2 (pid {world.pid(2)} on " in told and " at 127.0.0.1) " in told, told
        texts = [f"for bucket {n} of {len(buckets)} of DistributedDataParallel: the gradients of {', '.join(names[:3])}"
                 for n, names in enumerate(buckets)] or ["This rank was gathering unit 0 (zero_stage=3)",
                                                         "This rank was gathering unit 1 (zero_stage=3)"]
        assert any(text in told for text in texts), told
        assert re.search(r"\(this rank (was in|called|had queued) \w+\(.+ x .+\) #\d+, \d+ bytes\)", told), told


def test_two_at_once(make_world):
    world = make_world()
    world.begin(train, 1_000_000, 1000)
    time.sleep(0.2)
    killed = world.kill(1)
    world.kill(3)
    for outcome in world.finish([0, 2]):
        assert re.search(r"PeerLost: .*rank [13] \(pid \d+ on ", outcome.error), outcome.error
        assert outcome.ended - killed < IN_TIME_S


@pytest.mark.parametrize("victim", VICTIMS)
def test_a_forked_child_that_lives_on_hides_nothing(make_world, victim, transport):
    """Its child holds the sockets open. The kernel names the dead process anyway."""
    world = make_world(timeout_s=60)
    world.run(train, 1, 1000)
    child = world.run(start_children, ranks=[victim])[0]
    try:
        world.begin(train, 1, 1000, ranks=survivors_of(victim))
        time.sleep(0.1)
        killed = world.kill(victim)
        outcomes = world.finish(survivors_of(victim), within=20)
    finally:
        os.kill(child, signal.SIGKILL)
    check_survivors(world, victim, killed, outcomes)


def test_nothing_has_a_name_that_could_stay_behind(transport):
    """A killed rank cannot clean up, so there must be nothing to: no file of /dev/shm or /tmp is open or mapped."""
    listed = names_of_ours()
    with World(4, transport=transport) as world:
        before = [set(names) for names, _ in world.run(what_is_open)]
        world.join()
        world.run(train, 2, LARGE)
        for rank, (names, _) in enumerate(world.run(what_is_open)):
            new = set(names) - before[rank]
            assert new, "at least the sockets are new"
            assert [n for n in new if n.startswith(("/dev/shm/", "/tmp/"))] == []
        for rank in range(4):
            world.kill(rank)
    assert names_of_ours() <= listed


def names_of_ours() -> set[str]:
    """What lies in the shared folders and has our name."""
    return {f"{folder}/{name}" for folder in ("/dev/shm", "/tmp") for name in os.listdir(folder) if "ringdp" in name}
