"""Late is not dead: a stopped rank is reported, waited for until the deadline, and harmed nobody when it comes back."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from ranks import HERE, LIMIT_S, World

LARGE = 1 << 20
DEADLINE_S = 2


def train_until(end: str, count: int) -> int:
    """On a rank: checked all-reduces until that file exists; how many. Rank 0 looks, and says when some are done."""
    steps = 0
    go_on = torch.ones(1)
    while go_on.item() > 0:
        tensor = torch.full((count,), float(steps + HERE.rank))
        dist.all_reduce(tensor)
        assert torch.equal(tensor, torch.full((count,), float(sum(steps + r for r in range(HERE.size)))))
        steps += 1
        if steps == 3 and HERE.rank == 0:
            Path(f"{end}.begun").touch()
        go_on = torch.tensor([float(HERE.rank == 0 and not Path(end).exists())])
        dist.all_reduce(go_on, op=dist.ReduceOp.MAX)
    return steps


def once() -> None:
    """On a rank: one all-reduce."""
    dist.all_reduce(torch.ones(100))


def wait_for(what: str, found: Callable[[], object]) -> None:
    """Until it is there."""
    deadline = time.monotonic() + LIMIT_S
    while not found():
        assert time.monotonic() < deadline, what
        time.sleep(0.01)


def warnings_about(world: World, rank: int, by: int) -> list[str]:
    return [line for line in world.stderr(by).splitlines() if "warning" in line and f"rank {rank} (pid " in line]


@pytest.mark.parametrize(("victim", "count"), [(0, 100), (2, 100), (1, LARGE)])
def test_a_stopped_rank_is_waited_for(make_world, tmp_path, victim, count):
    world, end = make_world(timeout_s=LIMIT_S), tmp_path / "end"
    others = [rank for rank in range(4) if rank != victim]
    world.begin(train_until, str(end), count)
    wait_for("three steps", Path(f"{end}.begun").exists)
    world.signal(victim, signal.SIGSTOP)
    wait_for("a warning", lambda: any(warnings_about(world, victim, by) for by in others))
    world.signal(victim, signal.SIGCONT)
    end.touch()
    steps = {outcome.value for outcome in world.finish()}
    assert len(steps) == 1 and None not in steps, [world.stderr(rank) for rank in range(4)]


def test_the_warning_says_that_the_process_is_stopped(make_world, transport):
    world = make_world(timeout_s=LIMIT_S)
    world.signal(2, signal.SIGSTOP)
    world.begin(once)
    wait_for("a warning", lambda: warnings_about(world, 2, by=0))
    world.signal(2, signal.SIGCONT)
    world.finish()
    lines = warnings_about(world, 2, by=0)
    assert len(lines) == 1, "said once per collective"
    waited = re.search(r"all_reduce\(SUM, float32 x 100\) #1 has waited (\d+\.\d) s", lines[0])
    assert waited and float(waited[1]) >= 1, lines
    assert f"rank 2 (pid {world.pid(2)} on " in lines[0]
    if transport == "shm":
        assert "its process is stopped by a signal (state T)" in lines[0]


def test_a_rank_stopped_past_the_deadline_is_named(make_world, tmp_path):
    world, end = make_world(timeout_s=DEADLINE_S), tmp_path / "end"
    world.begin(train_until, str(end), 100)
    wait_for("three steps", Path(f"{end}.begun").exists)
    stopped = world.signal(1, signal.SIGSTOP)
    for outcome in world.finish([0, 2, 3]):
        assert "Timeout: " in outcome.error, outcome.error
        assert f"rank 1 (pid {world.pid(1)} on " in outcome.error, outcome.error
        assert outcome.ended - stopped > DEADLINE_S - 0.5
