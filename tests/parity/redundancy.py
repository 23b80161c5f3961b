"""On a rank: torch's ZeroRedundancyOptimizer and ringdp's, each over its backend, and what both are given."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from ranks import HERE, group_of
from ringdp.zero.optimizer import ZeroOptimizer
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.optim import SGD, Optimizer

CLASSES: dict[str, Callable[..., Any]] = {"torch": ZeroRedundancyOptimizer, "ringdp": ZeroOptimizer}
BACKEND = {"torch": "gloo", "ringdp": "ringdp"}


def sharded(kind: str, params: Any, cls: type[Optimizer] = SGD, **given: Any) -> Any:
    if "process_group" not in given:  # all ranks make it together; some have a group of their own
        given["process_group"] = group_of(BACKEND[kind])
    return CLASSES[kind](params, optimizer_class=cls, **given)


def layers(inputs: int = 20, width: int = 10, outputs: int = 5) -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(inputs, width), nn.Linear(width, width), nn.Linear(width, outputs))


def noise(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def one(value: float = 1.0) -> torch.Tensor:
    return torch.tensor([value], requires_grad=True)


def passed_on(optimizer: Any) -> dict[str, Any]:
    """Its consolidated state, on every rank. Collective."""
    optimizer.consolidate_state_dict(to=0)
    box = [optimizer.state_dict() if HERE.rank == 0 else None]
    dist.broadcast_object_list(box, src=0, group=group_of("gloo"))
    return box[0]
