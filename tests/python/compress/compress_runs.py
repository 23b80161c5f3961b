"""What the tests of compression train."""

from __future__ import annotations

from typing import Any

import ringdp
import torch
from ranks import HERE
from torch import Tensor, nn


class Model(nn.Module):
    """Parameters of more and of less than a block, a matrix that is larger than its factors, one with two uses."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(20, 60), nn.LayerNorm(60), nn.Linear(60, 20, bias=False)
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * self.last(torch.tanh(self.norm(self.first(self.last(torch.relu(self.first(x)))))))


def made(dtype: str) -> tuple[Model, torch.optim.Optimizer]:
    torch.manual_seed(3)
    model = Model().to(getattr(torch, dtype))
    return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def loss_of(model: nn.Module, rank: int, step: int, micro: int) -> Tensor:
    source = torch.Generator().manual_seed(1000 * rank + 10 * step + micro)
    x = torch.randn(4, 20, generator=source).to(next(model.parameters()).dtype)
    return (model(x) - x).square().mean()


def train(ddp: Any, optimizer: torch.optim.Optimizer, steps: range, folder: str) -> None:
    """On a rank. folder: where the run is saved at its end or, if it begins after step 0, loaded from; "": neither."""
    if steps.start:
        ringdp.checkpoint.load(folder, ddp, optimizer)
    for step in steps:
        loss_of(ddp, HERE.rank, step, 0).backward()
        optimizer.step()
        optimizer.zero_grad()
    if folder and not steps.start:
        ringdp.checkpoint.save(folder, ddp, optimizer)
