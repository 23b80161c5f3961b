"""Ranks that are killed or stopped while CUDA tensors travel: told in time, nobody hangs, the context survives."""

from __future__ import annotations

import signal
import time

import one_gpu as gpu
import pytest
import torch
import torch.distributed as dist
from ranks import HERE, World

gpu.require(cuda=True)
DEVICE = "cuda"
IN_TIME_S = 1.0
COUNT = 1 << 18
VICTIM = 1


def train(device: str, seconds: float) -> int:
    """On a rank: all-reduces, each read back and checked."""
    end, steps = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        tensor = torch.full((COUNT,), float(steps + HERE.rank), device=device)
        dist.all_reduce(tensor)
        found = float(tensor[-1])
        if found != found:  # NaN: the error comes with the next call
            continue
        assert found == sum(steps + rank for rank in range(HERE.size)), found
        steps += 1
    return steps


def once(device: str) -> float:
    """On a rank: one all-reduce, waited for on the device."""
    tensor = torch.ones(COUNT, device=device)
    dist.all_reduce(tensor)
    return float(tensor[-1])


def in_a_new_group(device: str, ranks: list[int]) -> float:
    """On a survivor: the lost group is left, and those that live meet in another; the same context, the same GPU."""
    dist.destroy_process_group()
    store = dist.TCPStore("127.0.0.1", HERE.port, is_master=False)
    dist.init_process_group(
        "ringdp", store=dist.PrefixStore("again", store), rank=ranks.index(HERE.rank), world_size=len(ranks)
    )
    return once(device)


def joined(world: World, timeout_s: float) -> World:
    world.join(timeout_s)
    world.run(once, DEVICE)  # contexts take seconds to make, which is not what is timed
    return world


@pytest.mark.parametrize("size", [2, 4])
def test_a_killed_rank_is_named_in_time_and_survivors_go_on(run_on_fresh_ranks, size):
    world = joined(run_on_fresh_ranks(size), 60)
    survivors = [rank for rank in range(size) if rank != VICTIM]
    world.begin(train, DEVICE, 60.0)
    time.sleep(0.5)
    killed = world.kill(VICTIM)
    for outcome in world.finish(survivors):
        assert "PeerLost: " in outcome.error and f"rank {VICTIM} (pid {world.pid(VICTIM)} on " in outcome.error
        assert outcome.ended - killed < IN_TIME_S, f"rank {outcome.rank} was told after {outcome.ended - killed:.2f} s"
    assert world.run(in_a_new_group, DEVICE, survivors, ranks=survivors) == [float(len(survivors))] * len(survivors)


def test_a_stopped_rank_is_reported_late_and_waited_for(run_on_fresh_ranks):
    world = joined(run_on_fresh_ranks(2), 60)
    world.signal(VICTIM, signal.SIGSTOP)
    world.begin(once, DEVICE)
    time.sleep(2.5)
    said = world.stderr(0)
    world.signal(VICTIM, signal.SIGCONT)
    assert [outcome.value for outcome in world.finish()] == [2.0, 2.0]
    assert f"rank {VICTIM} (pid " in said and "warning" in said


def test_at_the_deadline_a_stopped_rank_is_a_timeout(run_on_fresh_ranks):
    world = joined(run_on_fresh_ranks(2), 3)
    stopped = world.signal(VICTIM, signal.SIGSTOP)
    world.begin(train, DEVICE, 60.0, ranks=[0])
    [outcome] = world.finish([0])
    world.signal(VICTIM, signal.SIGCONT)
    assert "Timeout: " in outcome.error and f"rank {VICTIM}" in outcome.error, outcome.error
    assert 2.0 < outcome.ended - stopped < 3 + 2 * IN_TIME_S
    assert world.run(in_a_new_group, DEVICE, [0], ranks=[0]) == [1.0]
