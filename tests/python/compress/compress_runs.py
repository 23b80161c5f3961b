"""What the tests of compression train."""

from __future__ import annotations

import torch
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
