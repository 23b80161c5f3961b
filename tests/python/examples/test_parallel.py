"""The wrapper of a run by kind, the optimizer that fits it, its whole state and its account."""

from __future__ import annotations

import pytest
import ringdp
import torch
from ringdp.examples.parallel import KINDS, adamw, data_parallel, memory_of, name_of
from torch import nn
from torch.nn.parallel import DistributedDataParallel as Stock


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize(("kind", "cls"), [("ringdp", ringdp.DistributedDataParallel), ("stock", Stock)])
def test_each_kind_is_its_class_with_views(kind, cls):
    wrapped = data_parallel(nn.Linear(2, 2), kind)
    assert type(wrapped) is cls and wrapped.gradient_as_bucket_view


def stepped(kind: str, stage: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    ddp = data_parallel(nn.Linear(2, 3), kind, zero_stage=stage)
    optimizer = adamw(ddp, 0.1, stage)
    ddp(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    return ddp, optimizer


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("stage", [0, 1, 2])
def test_the_account_of_one_rank_is_16_bytes_per_parameter_at_every_stage(stage):
    memory, parameters = memory_of(*stepped("ringdp", stage)), 2 * 3 + 3
    numbers = 2 * 4  # of steps, one per parameter
    assert memory.parameters + memory.gradients + memory.state == 16 * parameters + numbers


@pytest.mark.usefixtures("alone")
def test_stock_ddp_keeps_no_account():
    assert memory_of(*stepped("stock", 0)) is None


def test_every_kind_and_stage_has_a_name():
    assert len({name_of(kind) for kind in KINDS} | {name_of("ringdp", stage) for stage in (1, 2, 3)}) == 5
