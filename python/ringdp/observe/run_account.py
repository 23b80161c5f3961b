"""Bytes that a run holds on this rank, counted, beside what the formula of its ZeRO stage says."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel as Stock
from torch.optim import Optimizer

from ringdp.ddp.wrapper import DistributedDataParallel
from ringdp.pages.report_figures import IN_FORMULA
from ringdp.planner.fake_memory import CannotCount
from ringdp.planner.optimizer_state import held_bytes
from ringdp.planner.preflight import preflight
from ringdp.zero.memory import Memory
from ringdp.zero.optimizer import ZeroOptimizer


def memory_of(ddp: Stock, optimizer: Optimizer) -> Memory | None:
    """What training holds now; None where an optimizer hides another's state, as torch's ZeroRedundancyOptimizer."""
    if isinstance(optimizer, ZeroOptimizer):
        return optimizer.memory()
    if hasattr(optimizer, "optim"):
        return None
    state = held_bytes(optimizer)
    if isinstance(ddp, DistributedDataParallel):
        return replace(ddp.memory(), state=state)
    gradients = sum(p.grad.nbytes for p in ddp.parameters() if p.grad is not None)
    return Memory(
        parameters=sum(p.nbytes for p in ddp.parameters()),
        gradients=gradients,
        state=state,
        buckets=0 if ddp.gradient_as_bucket_view else gradients,
    )


def formula_of(module: nn.Module, optimizer: Optimizer, held: Memory, ranks: int) -> dict[str, float] | None:
    """By kind what `ringdp.preflight` foretells at the optimizer's stage; None where the optimizer needs values."""
    sharded = isinstance(optimizer, ZeroOptimizer)
    given: Any = optimizer.optim if sharded else optimizer
    try:
        found = preflight(
            module,
            given,
            None,
            device_bytes=math.inf,
            ranks=ranks,
            stage=optimizer.stage if sharded else 0,
            master_dtype=torch.float32 if held.master else None,
            activation_bytes=0.0,
        )
    except CannotCount:
        return None
    return {kind: getattr(found.by_stage[found.stage], kind) for kind in IN_FORMULA}
