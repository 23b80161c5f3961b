"""The model that is trained: square layers, so that every layer has the same number of parameters."""

from __future__ import annotations

import torch
from torch import nn


def mlp(layers: int, width: int, bias: bool = True, dtype: torch.dtype = torch.float32) -> nn.Sequential:
    """The same on all ranks."""
    torch.manual_seed(0)
    made: list[nn.Module] = []
    for _ in range(layers):
        made += [nn.Linear(width, width, bias=bias), nn.ReLU()]
    return nn.Sequential(*made).to(dtype)
