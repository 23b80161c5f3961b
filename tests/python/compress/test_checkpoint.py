"""Residuals of a wrapper with compress=..., saved and loaded."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import ringdp
import torch
from ranks import HERE, error_of
from ringdp.compress.methods import PowerSGD, TopK
from ringdp.ddp.wrapper import DistributedDataParallel
from ringdp.testing import one_process, parameters_hash
from torch import Tensor, nn

pytestmark = pytest.mark.usefixtures("one_thread")
STEPS, HALF = 6, 3


def made() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(20, 60), nn.Tanh(), nn.Linear(60, 20))
    return model, torch.optim.Adam(model.parameters(), lr=0.01)


def loss_of(model: nn.Module, rank: int, step: int, micro: int = 0) -> Tensor:
    x = torch.randn(4, 20, generator=torch.Generator().manual_seed(100 * rank + step))
    return (model(x) - x).square().mean()


def train(ddp: Any, optimizer: Any, steps: range) -> None:
    for step in steps:
        loss_of(ddp, HERE.rank, step).backward()
        optimizer.step()
        optimizer.zero_grad()


def half(folder: str, method: Any, stage: int) -> None:
    """On a rank: the first half, saved."""
    model, optimizer = made()
    ddp = DistributedDataParallel(model, compress=method, zero_stage=stage)
    if stage:
        optimizer = ringdp.ZeroOptimizer(ddp.parameters(), torch.optim.Adam, lr=0.01)
    train(ddp, optimizer, range(HALF))
    ringdp.checkpoint.save(folder, ddp, optimizer)


def other_half(folder: str, method: Any, stage: int) -> str:
    """On a rank: what comes of it, in a program that starts again, with other buckets."""
    model, optimizer = made()
    torch.nn.init.zeros_(model[0].weight)
    ddp = DistributedDataParallel(model, compress=method, zero_stage=stage, bucket_cap_mb=0.002)
    if stage:
        optimizer = ringdp.ZeroOptimizer(ddp.parameters(), torch.optim.Adam, lr=0.01)
    train(ddp, optimizer, range(1))  # residuals until then are forgotten
    ringdp.checkpoint.load(folder, ddp, optimizer)
    train(ddp, optimizer, range(HALF, STEPS))
    return parameters_hash(model)


@pytest.mark.parametrize("method", ["int8", "sign", TopK(0.05), PowerSGD(2, start=1)], ids=repr)
@pytest.mark.parametrize(("stage", "later"), [(0, 0), (1, 1), (2, 2), (2, 0), (0, 2)])
def test_a_training_goes_on_with_the_bits_of_one_that_has_not_stopped(world_of, tmp_path, method, stage, later):
    model, optimizer = made()
    one_process(model, optimizer, loss_of, ranks=3, steps=STEPS, compress=method)
    world_of(3).run(half, str(tmp_path), method, stage)
    assert world_of(3).run(other_half, str(tmp_path), method, later) == [parameters_hash(model)] * 3


def rolled_back(method: Any) -> str:
    """On a rank: the hash of a training whose first steps were undone by hand."""
    model, optimizer = made()
    ddp = DistributedDataParallel(model, compress=method)
    before = copy.deepcopy((ddp.state_dict(), optimizer.state_dict()))
    train(ddp, optimizer, range(HALF))
    ddp.load_state_dict(before[0])
    optimizer.load_state_dict(before[1])
    ddp.drop_residuals()
    train(ddp, optimizer, range(STEPS))
    return parameters_hash(model)


@pytest.mark.parametrize("method", ["sign", PowerSGD(2)], ids=repr)
def test_residuals_may_be_dropped(world_of, method):
    model, optimizer = made()
    one_process(model, optimizer, loss_of, ranks=3, steps=STEPS, compress=method)
    assert world_of(3).run(rolled_back, method) == [parameters_hash(model)] * 3


def loads_elsewhere(folder: str) -> list[str]:
    """On a rank: another number of ranks, another method, none."""
    model, optimizer = made()
    said = []
    for method in ("int8", "fp8"):
        ddp = DistributedDataParallel(model, compress=method)
        said.append(error_of(ringdp.checkpoint.load, folder, ddp, optimizer))
    model, optimizer = made()
    ringdp.checkpoint.load(folder, DistributedDataParallel(model), optimizer)
    return said


def test_other_ranks_and_methods_are_refused_and_plain_models_load_it(world_of, tmp_path):
    world_of(3).run(half, str(tmp_path), "int8", 0)
    for ranks, method in world_of(2).run(loads_elsewhere, str(tmp_path)):
        assert "on 3 ranks, whose ranks is 3, and this run has 2" in ranks
        assert "whose method is Codes(kind='int8'" in method and "Codes(kind='fp8'" in method
    model, _ = made()
    ringdp.checkpoint.load(tmp_path, model)
    assert not torch.equal(model[0].weight, made()[0][0].weight)


def test_a_checkpoint_without_any_is_a_beginning(world_of, tmp_path):
    world_of(2).run(half, str(tmp_path), None, 0)
    assert len(set(world_of(2).run(other_half, str(tmp_path), "int8", 0))) == 1
