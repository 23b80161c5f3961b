"""Worlds of more ranks than a machine has cores: they meet, reduce, and leave."""

from __future__ import annotations

import time

import pytest
import torch
import torch.distributed as dist
from ranks import HERE, World


def connect() -> None:
    """On a rank: the job's store, whose own time is torch's."""
    HERE.store = dist.TCPStore("127.0.0.1", HERE.port, is_master=False)
    HERE.store.add("connected", 1)


def meet() -> tuple[float, float, float]:
    """On a rank: the sum of all ranks' numbers; when it began, and when it had that."""
    began = time.monotonic()
    dist.init_process_group("ringdp", store=HERE.store, rank=HERE.rank, world_size=HERE.size)
    total = torch.tensor([float(HERE.rank)])
    dist.all_reduce(total)
    return float(total), began, time.monotonic()


@pytest.mark.long
@pytest.mark.parametrize("size", [32, 64])
def test_they_meet(size, transport):
    with World(size, transport=transport) as world:
        world.run(connect)
        met = world.run(meet)
        took = max(at for _, _, at in met) - min(began for _, began, _ in met)
        print(f"{size} ranks over {transport}: group and first sum after {took:.2f} s, once the store was there")
        assert [total for total, _, _ in met] == [size * (size - 1) / 2] * size
        world.leave()
