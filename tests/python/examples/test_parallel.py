"""The wrapper of a run by kind, and the optimizer that fits it."""

from __future__ import annotations

import pytest
import ringdp
import torch
from ringdp.examples.parallel import KINDS, adamw, data_parallel, name_of
from torch import nn
from torch.nn.parallel import DistributedDataParallel as Stock


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize(("kind", "cls"), [("ringdp", ringdp.DistributedDataParallel), ("stock", Stock)])
def test_each_kind_is_its_class_with_views(kind, cls):
    wrapped = data_parallel(nn.Linear(2, 2), kind)
    assert type(wrapped) is cls and wrapped.gradient_as_bucket_view


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("stage", [0, 1, 2])
def test_the_optimizer_fits_the_stage(stage):
    cls = ringdp.ZeroOptimizer if stage else torch.optim.AdamW
    assert type(adamw(data_parallel(nn.Linear(2, 3), "ringdp", zero_stage=stage), 0.1, stage)) is cls


def test_every_kind_and_stage_has_a_name():
    assert len({name_of(kind) for kind in KINDS} | {name_of("ringdp", stage) for stage in (1, 2, 3)}) == 5
