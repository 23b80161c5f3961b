"""Training on CUDA tensors of ranks that share one GPU ends with the bits of one process on that GPU.

Divisors are powers of two: torch divides by another number on a GPU by multiplying with its reciprocal.
"""

from __future__ import annotations

import os

import one_gpu as gpu
import pytest
import torch
from ranks import HERE
from torch import nn

gpu.require(cuda=True)
DEVICE, STEPS = "cuda", 6
SETTINGS = {"lr": 0.01, "weight_decay": 0.1, "foreach": False}


def model_on(device: str) -> nn.Module:
    """The same on every rank; cuBLAS with one workspace, because the order of its sums may depend on it."""
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(5)
    layers = [nn.Linear(61, 128), nn.GELU(), nn.LayerNorm(128), nn.Linear(128, 127), nn.GELU(), nn.Linear(127, 10)]
    return nn.Sequential(*layers).to(device)


def loss_of(model: nn.Module, rank: int, step: int, micro: int) -> torch.Tensor:
    """Of this rank's own batch."""
    source = torch.Generator().manual_seed(1000 * step + 10 * rank + micro)
    device = next(model.parameters()).device
    inputs = torch.randn(32, 61, generator=source).to(device)
    return nn.functional.cross_entropy(model(inputs), torch.randint(10, (32,), generator=source).to(device))


def in_one_process(device: str, ranks: int) -> str:
    """On a rank: the hash of the parameters after the same training without a group."""
    from ringdp.testing import one_process, parameters_hash

    model = model_on(device)
    one_process(model, torch.optim.AdamW(model.parameters(), **SETTINGS), loss_of, ranks=ranks, steps=STEPS)
    return parameters_hash(model)


def together(device: str, stage: int) -> str:
    """On a rank: the same hash of a training with all ranks."""
    import ringdp

    ddp = ringdp.DistributedDataParallel(model_on(device), bucket_cap_mb=0.05, zero_stage=stage)
    if stage:
        optimizer = ringdp.ZeroOptimizer(ddp.parameters(), torch.optim.AdamW, **SETTINGS)
    else:
        optimizer = torch.optim.AdamW(ddp.parameters(), **SETTINGS)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss_of(ddp, HERE.rank, step, 0).backward()
        optimizer.step()
    return ringdp.testing.parameters_hash(ddp)


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
@pytest.mark.parametrize("world", [2, 4])
def test_training_has_the_hash_of_one_process(world_of, world, stage):
    [right] = world_of(1).run(in_one_process, DEVICE, world)
    assert world_of(world).run(together, DEVICE, stage) == [right] * world
