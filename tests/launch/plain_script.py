"""What a user writes: no import of ringdp anywhere. Under torchrun, or started by itself with mp.spawn.

plain_script.py BACKEND [STORE]: with a file for the store it spawns two ranks itself.
"""

from __future__ import annotations

import os
import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def train(backend: str) -> list[float]:
    """One DDP step, an object collective and a second group; the weight's gradient."""
    rank, world = dist.get_rank(), dist.get_world_size()
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 1, bias=False))
    model(torch.full((1, 3), float(rank + 1))).sum().backward()
    names = [None] * world
    dist.all_gather_object(names, f"rank {rank}")
    assert names == [f"rank {r}" for r in range(world)]
    assert dist.get_backend() == backend
    ones = torch.ones(2)
    dist.all_reduce(ones, group=dist.new_group(list(range(world))))
    assert ones.tolist() == [float(world)] * 2
    dist.barrier()
    return model.module.weight.grad.view(-1).tolist()


def spawned(rank: int, backend: str, store: str) -> None:
    """A rank of mp.spawn."""
    dist.init_process_group(backend, init_method=f"file://{store}", rank=rank, world_size=2)
    finish(backend)


def finish(backend: str) -> None:
    """Trains, prints what rank 0 has, and leaves."""
    gradient = train(backend)
    if dist.get_rank() == 0:
        kind = type(dist.group.WORLD._get_backend(torch.device("cpu"))).__module__
        print(f"gradient {gradient} over {kind}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    if len(sys.argv) > 2:
        mp.spawn(spawned, args=(sys.argv[1], sys.argv[2]), nprocs=2)
    else:
        assert os.environ["RANK"], "for torchrun"
        dist.init_process_group(sys.argv[1])
        finish(sys.argv[1])
