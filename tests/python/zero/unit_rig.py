"""On a rank: trainings at stage 3 of the models in unit_models.py, and the same in one process."""

from __future__ import annotations

from typing import Any

import torch
from ranks import HERE
from ringdp.ddp.wrapper import DistributedDataParallel
from ringdp.testing import one_process
from ringdp.zero.optimizer import ZeroOptimizer
from small_models import fresh, group_of, loss_of
from unit_models import MODELS
from zero_rig import ADAMW


def made(kind: str, backend: str = "ringdp", **arguments: Any) -> tuple[Any, ZeroOptimizer]:
    ddp = DistributedDataParallel(fresh(MODELS[kind]), process_group=group_of(backend), zero_stage=3, **arguments)
    trainable = [p for p in ddp.parameters() if p.requires_grad]
    return ddp, ZeroOptimizer(trainable, torch.optim.AdamW, **ADAMW)


def alone(kind: str, count: int, **arguments: Any) -> tuple[Any, torch.optim.Optimizer]:
    plain = fresh(MODELS[kind])
    optimizer = torch.optim.AdamW([p for p in plain.parameters() if p.requires_grad], **ADAMW)
    one_process(plain, optimizer, loss_of, ranks=HERE.size, steps=count, **arguments)
    return plain, optimizer
