"""On a rank: small models, their data, and the reference they are compared with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from ranks import HERE, group_of
from ringdp.ddp.wrapper import DistributedDataParallel
from ringdp.testing import one_process, parameters_hash
from torch import nn


def mlp(width: int = 48) -> nn.Sequential:
    return nn.Sequential(nn.Linear(12, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 3))


def fresh(make: Callable[[], nn.Module] = mlp, seed: int = 7) -> nn.Module:
    """A model, the same on every rank for the same seed."""
    torch.manual_seed(seed)
    return make()


def batch(rank: int, step: int, micro: int = 0, samples: int = 4) -> tuple[torch.Tensor, torch.Tensor]:
    """A micro-batch, a pure function of its arguments."""
    source = torch.Generator().manual_seed(10000 * rank + 100 * step + micro)
    x = torch.randn(samples, 12, generator=source)
    return x, x[:, :3].tanh()


def loss_of(model: nn.Module, rank: int, step: int, micro: int, samples: int = 4, how: str = "mean") -> torch.Tensor:
    x, y = batch(rank, step, micro, samples)
    return nn.functional.mse_loss(model(x), y, reduction=how)


def optimizer_for(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=1e-2)


def train(steps: int = 3, backend: str = "ringdp", **arguments: Any) -> str:
    """On a rank: the hash after some steps of the plain loop."""
    ddp = DistributedDataParallel(fresh(), process_group=group_of(backend), **arguments)
    optimizer = optimizer_for(ddp)
    for step in range(steps):
        optimizer.zero_grad()
        loss_of(ddp, HERE.rank, step, 0).backward()
        optimizer.step()
    return parameters_hash(ddp)


def reference(steps: int = 3, **arguments: Any) -> str:
    """The same in one process."""
    model = fresh()
    one_process(model, optimizer_for(model), loss_of, ranks=HERE.size, steps=steps, **arguments)
    return parameters_hash(model)
