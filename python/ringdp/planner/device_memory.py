"""How much memory a rank of this machine has, and how many ranks there are."""

from __future__ import annotations

import os

import torch
import torch.distributed as dist


def bytes_per_rank() -> int:
    """Of the current CUDA device; without one, this machine's memory divided among its ranks."""
    if torch.cuda.is_available():
        return int(torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory)
    whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return whole // max(1, int(os.environ.get("LOCAL_WORLD_SIZE", "1")))


def ranks() -> int:
    """Of the default group, else what torchrun says, else 1."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_world_size()
    return int(os.environ.get("WORLD_SIZE", "1"))
