"""Late is not dead: a stopped rank is reported, waited for until the deadline, and harmed nobody when it comes back."""

from __future__ import annotations

import re
import signal
import time

import pytest
import torch
import torch.distributed as dist
from ranks import HERE, World

STOPPED_S = 2.5
LARGE = 1 << 20


def train_for(seconds: float, count: int) -> int:
    """On a rank: checked all-reduces until rank 0 says that the time is over; how many."""
    end = time.monotonic() + seconds
    steps = 0
    go_on = torch.ones(1)
    while go_on.item() > 0:
        tensor = torch.full((count,), float(steps + HERE.rank))
        dist.all_reduce(tensor)
        assert torch.equal(tensor, torch.full((count,), float(sum(steps + r for r in range(HERE.size)))))
        steps += 1
        go_on = torch.tensor([float(HERE.rank == 0 and time.monotonic() < end)])
        dist.all_reduce(go_on, op=dist.ReduceOp.MAX)
    return steps


def warnings_about(world: World, rank: int, by: int) -> list[str]:
    return [line for line in world.stderr(by).splitlines() if "warning" in line and f"rank {rank} (pid " in line]


@pytest.mark.parametrize(("victim", "count"), [(0, 100), (2, 100), (1, LARGE)])
def test_a_stopped_rank_is_waited_for(make_world, victim, count):
    world = make_world(timeout_s=30)
    others = [rank for rank in range(4) if rank != victim]
    world.begin(train_for, STOPPED_S + 0.7, count)
    time.sleep(0.3)
    world.signal(victim, signal.SIGSTOP)
    time.sleep(1.6)
    in_time = {by: warnings_about(world, victim, by) for by in others}
    time.sleep(STOPPED_S - 1.6)
    world.signal(victim, signal.SIGCONT)
    steps = {outcome.value for outcome in world.finish()}
    assert len(steps) == 1 and None not in steps, [world.stderr(rank) for rank in range(4)]
    assert any(in_time.values()), [world.stderr(rank) for rank in others]


def test_the_warning_says_that_the_process_is_stopped(make_world, transport):
    world = make_world(timeout_s=30)
    world.signal(2, signal.SIGSTOP)
    world.begin(train_for, 0.1, 100)
    time.sleep(2)
    lines = warnings_about(world, 2, by=0)
    world.signal(2, signal.SIGCONT)
    world.finish()
    assert len(lines) == 1, "said once per collective"
    assert re.search(r"all_reduce\(SUM, float32 x 100\) #1 has waited 1\.\d s", lines[0]), lines
    assert f"rank 2 (pid {world.pid(2)} on " in lines[0]
    if transport == "shm":
        assert "its process is stopped by a signal (state T)" in lines[0]


def test_a_rank_stopped_past_the_deadline_is_named(make_world):
    world = make_world(timeout_s=3)
    world.begin(train_for, 60, 100)
    time.sleep(0.3)
    stopped = world.signal(1, signal.SIGSTOP)
    for outcome in world.finish([0, 2, 3], within=20):
        assert "Timeout: " in outcome.error, outcome.error
        assert f"rank 1 (pid {world.pid(1)} on " in outcome.error, outcome.error
        assert 2.5 < outcome.ended - stopped < 5
