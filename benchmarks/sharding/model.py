"""The model that is trained, and what stage 0 is in bfloat16: AdamW on float32 copies of the parameters."""

from __future__ import annotations

import torch
from torch import nn
from torch.optim import AdamW


def mlp(layers: int, width: int, bias: bool = True, dtype: torch.dtype = torch.float32) -> nn.Sequential:
    """The same on all ranks."""
    torch.manual_seed(0)
    made: list[nn.Module] = []
    for _ in range(layers):
        made += [nn.Linear(width, width, bias=bias), nn.ReLU()]
    return nn.Sequential(*made).to(dtype)


class MasteredAdamW:
    """One parameter at a time, so that one gradient only is there in float32: 2 + 2 + 12 bytes per parameter."""

    def __init__(self, module: nn.Module, rate: float) -> None:
        self._module = module
        self._masters = [nn.Parameter(p.detach().float()) for p in module.parameters()]
        self._each = [AdamW([master], lr=rate) for master in self._masters]

    @torch.no_grad()
    def step(self) -> None:
        """Steps all parameters."""
        parameters = self._module.parameters()
        for parameter, master, optimizer in zip(parameters, self._masters, self._each, strict=True):
            master.grad = parameter.grad.float()
            optimizer.step()
            master.grad = None
            parameter.copy_(master)

    def zero_grad(self) -> None:
        """Drops the gradients of the parameters."""
        self._module.zero_grad()
