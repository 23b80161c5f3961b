"""Data parallelism as textbooks show it: a tanh MLP in float64 on 8 replicas, full-batch descent."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from ranks import HERE
from ringdp.ddp.wrapper import DistributedDataParallel
from torch import nn

SAMPLES, INPUTS, HIDDEN, RATE, STEPS = 4096, 16, 32, 0.02, 200
EVEN = [512] * 8
UNEVEN = [2048, *[293] * 4, *[292] * 3]


def problem() -> tuple[torch.Tensor, torch.Tensor]:
    source = np.random.default_rng(7)
    x = source.standard_normal((SAMPLES, INPUTS))
    direction = source.standard_normal((INPUTS, 1))
    y = np.tanh(x @ direction) + 0.05 * source.standard_normal((SAMPLES, 1))
    return torch.from_numpy(x), torch.from_numpy(y)


def model_of(seed: int) -> nn.Module:
    source = np.random.default_rng(seed)
    model = nn.Sequential(nn.Linear(INPUTS, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, 1)).double()
    with torch.no_grad():
        model[0].weight.copy_(torch.from_numpy(source.standard_normal((INPUTS, HIDDEN)) * 0.1).T)
        model[2].weight.copy_(torch.from_numpy(source.standard_normal((HIDDEN, 1)) * 0.1).T)
        model[0].bias.zero_()
        model[2].bias.zero_()
    return model


def squares(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return (model(x) - y).pow(2).sum()


def flat(model: nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def alone() -> tuple[torch.Tensor, float]:
    """One machine on the whole batch: parameters and loss at the end."""
    x, y = problem()
    model = model_of(0)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    for _ in range(STEPS):
        optimizer.zero_grad()
        (squares(model, x, y) / SAMPLES).backward()
        optimizer.step()
    return flat(model), float(squares(model, x, y).detach()) / SAMPLES


def on_a_rank(sizes: list[int], weighted: bool, own_seed: bool = False) -> dict[str, Any]:
    """On a rank: its parameters before and after, how far all ranks are from rank 0, its loss on the whole batch."""
    x, y = problem()
    begin = sum(sizes[: HERE.rank])
    mine = slice(begin, begin + sizes[HERE.rank])
    model = model_of(HERE.rank if own_seed else 0)
    ddp = DistributedDataParallel(model, init_sync=not own_seed)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=RATE)
    before = flat(model)
    for _ in range(STEPS):
        optimizer.zero_grad()
        total = squares(ddp, x[mine], y[mine])
        if weighted:
            ddp.backward(total, weight=sizes[HERE.rank])
        else:
            (total / sizes[HERE.rank]).backward()
        optimizer.step()
    after = flat(model)
    return {
        "before": _distances(before),
        "after": _distances(after),
        "parameters": after,
        "loss": float(squares(model, x, y).detach()) / SAMPLES,
    }


def _distances(mine: torch.Tensor) -> torch.Tensor:
    """Of every rank's parameters to rank 0's: [ranks, parameters]."""
    everyones = [torch.empty_like(mine) for _ in range(HERE.size)]
    dist.all_gather(everyones, mine)
    return torch.stack(everyones) - everyones[0]
