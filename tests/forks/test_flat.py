"""Groups of all shapes that come and go, with children forked in between: a rank stays as large as it was."""

from __future__ import annotations

import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from ranks import HERE, World, join, leave

WARM_UP, CYCLES = 6, 18
SLACK_MAPS = 8  # the allocator's own
SETTLED_WITHIN_S = 10.0


def cycle(number: int) -> None:
    """On a rank: the default group anew every third time, two groups in it, a child while they live."""
    if number % 3 == 0:
        leave()
        join(60.0, {})
    groups = [dist.new_group(range(HERE.size)), dist.new_group(range(HERE.size), pg_options={"algorithm": "direct"})]
    works = [dist.all_reduce(torch.ones(1 << 14), group=group, async_op=True) for group in groups]
    child = os.fork()
    if child == 0:
        os._exit(0)
    for work in works:
        work.wait()
    os.waitpid(child, 0)
    for group in groups:
        dist.destroy_process_group(group)


def cycles(first: int, last: int) -> None:
    """On a rank."""
    for number in range(first, last):
        cycle(number)


def size_of(pid: int) -> dict[str, int]:
    """Descriptors, threads and mappings of a process."""
    return {
        "descriptors": len(os.listdir(f"/proc/{pid}/fd")),
        "threads": len(os.listdir(f"/proc/{pid}/task")),
        "maps": len(Path(f"/proc/{pid}/maps").read_text().splitlines()),
    }


def grown(world: World, allowed: list[dict[str, int]]) -> list[str]:
    """What is more than it may be. Asked until nothing is: the last group's end may still be under way."""
    deadline = time.monotonic() + SETTLED_WITHIN_S
    while True:
        sizes = [size_of(world.pid(rank)) for rank in range(world.size)]
        pairs = zip(sizes, allowed, strict=True)
        more = [f"{what}: {now[what]} of {may[what]}" for now, may in pairs for what in now if now[what] > may[what]]
        if not more or time.monotonic() > deadline:
            return more


def test_a_rank_stays_as_large_as_it_was(make_world):
    world = make_world(2)
    world.run(cycles, 0, WARM_UP)
    allowed = [size_of(world.pid(rank)) for rank in range(world.size)]
    for size in allowed:
        size["maps"] += SLACK_MAPS
    world.run(cycles, WARM_UP, CYCLES)
    assert grown(world, allowed) == []
