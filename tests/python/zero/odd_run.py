"""On a rank: a training with all that makes parameters odd, by torch's optimizer alone or by a ZeroOptimizer."""

from __future__ import annotations

from typing import Any

import torch
from ranks import HERE
from ringdp.ddp.wrapper import DistributedDataParallel
from ringdp.testing import one_process
from ringdp.zero.optimizer import ZeroOptimizer
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import ExponentialLR


class OddModel(nn.Module):
    """Frozen, unused, tied, without elements, without dimensions, in another memory order; and a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.image = nn.Conv2d(32, 40, 3, padding=1).to(memory_format=torch.channels_last)
        self.frozen = nn.Linear(40, 64).requires_grad_(False)
        self.first = nn.Linear(64, 64)
        self.second = nn.Linear(64, 64)
        self.second.weight = self.first.weight
        self.unused = nn.Linear(50, 50)
        self.empty = nn.Parameter(torch.empty(0, 3))
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        hidden = self.frozen(self.image(x).tanh().mean((2, 3)))
        return self.second(self.first(hidden).tanh()) * self.scale + self.empty.sum()


class Counting(Optimizer):
    """Counts its steps in an int, as torch's optimizers once did, and keeps a moment."""

    element_wise = True

    def __init__(self, params: Any, lr: float = 0.1) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    state = self.state[parameter]
                    state["count"] = state.get("count", 0) + 1
                    state["moment"] = state.get("moment", 0) * 0.5 + parameter.grad
                    parameter -= group["lr"] / state["count"] * state["moment"]


OPTIMIZERS: dict[str, tuple[type[Optimizer], dict[str, Any]]] = {
    "adamw": (torch.optim.AdamW, {"amsgrad": True}),
    "adam": (torch.optim.Adam, {"weight_decay": 0.01}),
    "sgd": (torch.optim.SGD, {"momentum": 0.9, "nesterov": True}),
    "plain sgd": (torch.optim.SGD, {}),
    "asgd": (torch.optim.ASGD, {}),
    "counting": (Counting, {}),
}


def loss_of(model: nn.Module, rank: int, step: int, micro: int) -> torch.Tensor:
    source = torch.Generator().manual_seed(1000 * rank + 10 * step + micro)
    return model(torch.randn(2, 32, 4, 4, generator=source)).square().mean()


def model_of(dtype: torch.dtype = torch.float32) -> OddModel:
    torch.manual_seed(11)
    return OddModel().to(dtype)


def groups_of(model: OddModel) -> list[dict[str, Any]]:
    """Two, of which the first has a rate of its own and frozen parameters."""
    first = [*model.frozen.parameters(), *model.image.parameters(), model.empty]
    rest = [p for p in model.parameters() if all(p is not other for other in first)]
    return [{"params": first, "lr": 0.02}, {"params": rest}]


class OddRun:
    """stage None: torch's optimizer and `ranks` virtual ranks; 0: a ZeroOptimizer that the wrapper knows nothing of."""

    def __init__(self, kind: str, stage: int | None, ranks: int = 3, **changes: Any) -> None:
        make, settings = OPTIMIZERS[kind]
        settings = {"lr": 0.01, **settings, **changes}
        self.model, self.stage, self.ranks = model_of(), stage, ranks
        self.wrapped: nn.Module = self.model
        groups = groups_of(self.model)
        if stage is None:
            self.optimizer: Any = make(groups, **settings)
        else:
            self.wrapped = DistributedDataParallel(
                self.model, zero_stage=stage, bucket_cap_mb=0.02, find_unused_parameters=True
            )
            self.optimizer = ZeroOptimizer(groups, make, **settings)
        self.scheduler = ExponentialLR(self.optimizer, 0.9)

    def steps(self, count: int, start: int = 0) -> None:
        for step in range(start, start + count):
            if self.stage is None:
                one_process(
                    self.model,
                    self.optimizer,
                    lambda model, rank, _, micro, step=step: loss_of(model, rank, step, micro),
                    ranks=self.ranks,
                    steps=1,
                )
            else:
                self.optimizer.zero_grad()
                loss_of(self.wrapped, HERE.rank, step, 0).backward()
                self.optimizer.step()
            self.scheduler.step()
