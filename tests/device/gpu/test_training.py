"""Training on CUDA tensors of ranks that share one GPU ends with the bits of one process on that GPU, and steps that
the device takes in the call that sums a bucket with the bits of the CPU.

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


COUNTS = (61 * 128, 128, 127 * 128, 10)


class Weighted(nn.Module):
    """Its output is a weighted sum of its parameters: gradients are the weights, with the same bits anywhere."""

    def __init__(self) -> None:
        super().__init__()
        source = torch.Generator().manual_seed(5)
        self.parts = nn.ParameterList(torch.randn(count, generator=source) for count in COUNTS)

    def forward(self, weights: list[torch.Tensor]) -> torch.Tensor:
        """A number."""
        return torch.stack([(part * weight).sum() for part, weight in zip(self.parts, weights, strict=True)]).sum()


def stepped(device: str) -> tuple[str, str]:
    """On a rank: how buckets are stepped, and the hash of the parameters afterwards."""
    import ringdp

    ddp = ringdp.DistributedDataParallel(Weighted().to(device), bucket_cap_mb=0.05, zero_stage=2)
    given = {"lr": 0.01, "weight_decay": 0.1, "fused": True, "overlap_with_ddp": True}
    optimizer = ringdp.ZeroOptimizer(ddp.parameters(), torch.optim.AdamW, **given)
    for step in range(STEPS):
        source = torch.Generator().manual_seed(100 * step + HERE.rank)
        weights = [torch.randn(count, generator=source).to(device) for count in COUNTS]
        optimizer.zero_grad()
        ddp(weights).backward()
        optimizer.step()
    return optimizer.describe(), ringdp.testing.parameters_hash(ddp)


@pytest.mark.parametrize("world", [2, 4])
def test_steps_in_one_call_of_the_device_have_the_bits_of_the_cpu(world_of, world):
    on_cpu = world_of(world).run(stepped, "cpu")
    on_device = world_of(world).run(stepped, DEVICE)
    assert all("by one call of the device" in how for how, _ in on_device), on_device
    assert {bits for _, bits in [*on_device, *on_cpu]} == {on_cpu[0][1]}


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
@pytest.mark.parametrize("world", [2, 4])
def test_training_has_the_hash_of_one_process(world_of, world, stage):
    [right] = world_of(1).run(in_one_process, DEVICE, world)
    assert world_of(world).run(together, DEVICE, stage) == [right] * world
