"""A small training run whose every step depends on the state, the loader's position and every generator."""

from __future__ import annotations

import random
from typing import Any

import numpy
import torch
import torch.distributed as dist
from torch import nn
from torch.optim import Optimizer


def model_of(seed: int = 1) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.3), nn.Linear(8, 3))


class Run:
    """A model, its optimizer and scheduler, and the position in an endless row of batches."""

    def __init__(self, make: type[Optimizer] = torch.optim.AdamW, **settings: Any) -> None:
        self.model = model_of()
        self.optimizer = make(self.model.parameters(), lr=0.01, **settings)
        self.scheduler = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, 0.9)
        self.position = 0

    @property
    def extra(self) -> dict[str, Any]:
        return {"position": self.position, "scheduler": self.scheduler.state_dict()}

    @extra.setter
    def extra(self, saved: dict[str, Any]) -> None:
        self.position = saved["position"]
        self.scheduler.load_state_dict(saved["scheduler"])

    def steps(self, count: int) -> None:
        """The ranks' gradients are averaged when there are ranks."""
        for _ in range(count):
            batch = torch.randn(4, 6, generator=torch.Generator().manual_seed(self.position))
            noise = random.random() + float(numpy.random.random())
            self.optimizer.zero_grad()
            self.model(batch * noise).square().mean().backward()
            if dist.is_initialized():
                for parameter in self.model.parameters():
                    dist.all_reduce(parameter.grad, dist.ReduceOp.AVG)
            self.optimizer.step()
            self.scheduler.step()
            self.position += 1

    def everything(self) -> dict[str, torch.Tensor]:
        """All tensors of the state by name."""
        names = {parameter: name for name, parameter in self.model.named_parameters()}
        state = {
            f"{key} of {names[parameter]}": value.clone()
            for parameter, values in self.optimizer.state.items()
            for key, value in values.items()
            if isinstance(value, torch.Tensor)
        }
        return {**state, **{name: tensor.clone() for name, tensor in self.model.state_dict().items()}}
