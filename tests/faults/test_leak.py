"""Groups that come and go: threads, descriptors, mappings and memory stay as they were."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from ranks import HERE
from sockets import open_files, resident_kib, threads

CYCLES = 50
MANY = 10_000
GROWTH_KIB = 4096


def cycle(count: int) -> None:
    """On a rank: create, use, destroy."""
    for _ in range(count):
        group = dist.new_group(range(HERE.size))
        dist.all_reduce(torch.ones(1 << 16), group=group)
        dist.destroy_process_group(group)


def footprint(world) -> list[tuple[int, int, int, int]]:
    pids = [world.pid(rank) for rank in range(world.size)]
    mappings = [len(Path(f"/proc/{pid}/maps").read_text().splitlines()) for pid in pids]
    return [(threads(p), open_files(p), resident_kib(p), m) for p, m in zip(pids, mappings, strict=True)]


def check_growth(world, before: list[tuple[int, int, int, int]]) -> None:
    for now, then in zip(footprint(world), before, strict=True):
        assert now[0] <= then[0], "threads"
        assert now[1] <= then[1], "descriptors"
        assert now[2] < then[2] + GROWTH_KIB, "resident memory"
        assert now[3] <= then[3] + 8, "mappings"


def test_fifty_groups_leave_nothing(make_world):
    world = make_world(2)
    world.run(cycle, 10)
    before = footprint(world)
    world.run(cycle, CYCLES)
    check_growth(world, before)


@pytest.mark.long
def test_ten_thousand_groups_leave_nothing(make_world):
    """In the life of one process; what torch itself keeps of a group's name is part of the growth."""
    world = make_world(2)
    world.run(cycle, MANY // 10)
    before = footprint(world)
    for _ in range(9):
        world.run(cycle, MANY // 10)
    check_growth(world, before)


def test_leaving_and_joining_again(make_world):
    world = make_world(2)
    world.leave()
    world.join()
    before = footprint(world)
    for _ in range(5):
        world.leave()
        world.join()
    for now, then in zip(footprint(world), before, strict=True):
        assert now[:2] <= then[:2], "threads and descriptors"
