"""Pinned memory is used again by later calls, and ends with its group."""

from __future__ import annotations

import gc
from datetime import timedelta

import torch
import torch.distributed as dist
from stand_in import StandIn, here


def rounds(gpu: StandIn, group: dist.ProcessGroup, count: int) -> int:
    """Sums of three sizes, each waited for; how much is pinned then."""
    for _ in range(count):
        for size in (1, 5000, 100_000):
            dist.all_reduce(gpu.put(torch.ones(size)), group=group, async_op=True).wait(timedelta(seconds=20))
    return gpu.pinned_bytes()


def used_again(library: str) -> tuple[int, int, bool, int]:
    """On a rank: bytes pinned by a group's first calls, and by all that follow; whether all went with the group."""
    gpu = here(library)
    before = gpu.pinned_bytes()
    group = gpu.new_group()
    first, later = rounds(gpu, group, 1), rounds(gpu, group, 20)
    dist.destroy_process_group(group)
    del group
    gc.collect()
    return first - before, later - before, gpu.pinned_bytes() == before


def test_calls_use_the_memory_of_earlier_ones(pair, stand_in):
    for first, later, gone in pair.run(used_again, stand_in):
        assert 400_000 <= later <= 2 * first
        assert gone
