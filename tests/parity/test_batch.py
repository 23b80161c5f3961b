"""A batch in parts: the gradient of 64 samples on one rank is that of 8 on each of 8."""

from __future__ import annotations

import torch
from ranks import HERE
from ringdp.ddp.wrapper import DistributedDataParallel
from torch import nn


def gradient_of_64(ranks: int) -> torch.Tensor:
    """On a rank: the gradient of a batch of 64, this rank's part of it being 64 / ranks."""
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(10, 20), nn.Tanh(), nn.Linear(20, 2)).double()
    x, y = torch.randn(64, 10).double(), torch.randn(64, 2).double()
    part = 64 // ranks
    mine = slice(HERE.rank * part, (HERE.rank + 1) * part)
    ddp = DistributedDataParallel(model)
    nn.functional.mse_loss(ddp(x[mine]), y[mine]).backward()
    return torch.cat([p.grad.flatten() for p in model.parameters()])


def test_eight_ranks_of_eight_are_one_of_sixty_four(world_of):
    whole = world_of(1).run(gradient_of_64, 1)[0]
    for parts in world_of(8).run(gradient_of_64, 8):
        assert torch.allclose(parts, whole, rtol=0, atol=1e-15)
