"""torch's own ZeroRedundancyOptimizer, over stock DDP."""

from __future__ import annotations

import torch
from groups import default_group, mlp, train
from ranks import HERE
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel


def training(backend: str) -> tuple[list[list[float]], int]:
    """On a rank: parameters after a training, and how many of them the consolidated state knows (rank 0)."""
    with default_group(backend):
        model = DistributedDataParallel(mlp())
        optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=1e-2)
        train(model, optimizer, HERE.rank)
        optimizer.consolidate_state_dict(to=0)
        known = len(optimizer.state_dict()["state"]) if HERE.rank == 0 else 0
        return [parameter.flatten().tolist() for parameter in model.parameters()], known


def plain_training(backend: str) -> list[list[float]]:
    """On a rank: the same with an optimizer that is not sharded."""
    with default_group(backend):
        model = DistributedDataParallel(mlp())
        train(model, torch.optim.AdamW(model.parameters(), lr=1e-2), HERE.rank)
        return [parameter.flatten().tolist() for parameter in model.parameters()]


def test_sharded_optimizer_state(assert_same, values_over):
    (parameters, known), (other, _) = assert_same(2, training)
    assert parameters == other
    assert known == len(parameters)
    assert values_over("ringdp", 2, plain_training)[0] == parameters
