"""Pinned memory is used again by later calls, and ends with its group."""

from __future__ import annotations

import gc
import sys
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).resolve().parent))
from fake import Fake, here


def rounds(fake: Fake, group: dist.ProcessGroup, count: int) -> int:
    """Sums of three sizes, each waited for; how much is pinned then."""
    for _ in range(count):
        for size in (1, 5000, 100_000):
            dist.all_reduce(fake.put(torch.ones(size)), group=group, async_op=True).wait(timedelta(seconds=20))
    return fake.pinned_bytes()


def used_again(library: str) -> tuple[int, int, bool, int]:
    """On a rank: bytes pinned by a group's first calls, and by all that follow; whether all went with the group."""
    fake = here(library)
    before = fake.pinned_bytes()
    group = fake.new_group()
    first, later = rounds(fake, group, 1), rounds(fake, group, 20)
    dist.destroy_process_group(group)
    del group
    gc.collect()
    return first - before, later - before, fake.pinned_bytes() == before


def test_calls_use_the_memory_of_earlier_ones(pair, fake_device):
    for first, later, gone in pair.run(used_again, fake_device):
        assert 400_000 <= later <= 2 * first
        assert gone
