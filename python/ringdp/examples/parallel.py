"""The wrapper of a run, ringdp's DistributedDataParallel or torch's own, and the optimizer that fits it."""

from __future__ import annotations

from collections.abc import Callable

import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as Stock
from torch.optim import AdamW, Optimizer

import ringdp
from ringdp.examples.gpt import Block

KINDS = ("ringdp", "stock")
ZERO_STAGES = (0, 1, 2, 3)


def data_parallel(model: nn.Module, kind: str, group: dist.ProcessGroup | None = None, zero_stage: int = 0) -> Stock:
    """`model` behind the class of that kind, with gradients as views of its buckets. Collective."""
    if kind == "stock":
        return Stock(model, process_group=group, gradient_as_bucket_view=True)
    # The head reads the embedding's weight, so both belong to what is gathered for the whole forward pass.
    units = {"units": [Block]} if zero_stage == 3 else {}
    return ringdp.DistributedDataParallel(
        model, process_group=group, gradient_as_bucket_view=True, zero_stage=zero_stage, **units
    )


def adamw(ddp: nn.Module, rate: float, zero_stage: int = 0) -> Optimizer:
    """AdamW of a wrapped model, in shards from stage 1 on. Collective there."""
    if zero_stage == 0:
        return AdamW(ddp.parameters(), lr=rate)
    return ringdp.ZeroOptimizer(ddp.parameters(), optimizer_class=AdamW, lr=rate)


def with_whole_parameters(ddp: nn.Module, model: nn.Module, fresh: Callable[[], nn.Module]) -> nn.Module:
    """`model`; where its parameters are in shards (stage 3), a fresh one that has all of them. Collective there."""
    if getattr(ddp, "zero_stage", 0) < 3:
        return model
    whole = fresh()
    whole.load_state_dict(ddp.full_state_dict())
    return whole


def name_of(kind: str, zero_stage: int = 0) -> str:
    """For titles."""
    if kind == "stock":
        return "stock DDP"
    return f"ringdp's DDP at zero_stage={zero_stage}" if zero_stage else "ringdp's DDP"
