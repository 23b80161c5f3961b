"""On a rank: trainings with a ZeroOptimizer, and the same in one process."""

from __future__ import annotations

from typing import Any

import torch
from ranks import HERE
from ringdp.ddp.wrapper import DistributedDataParallel
from ringdp.testing import one_process
from ringdp.zero.optimizer import ZeroOptimizer
from small_models import fresh, group_of, loss_of, mlp
from torch import nn

WIDTH = 96  # a weight of nine blocks, so that shards cut it
BUCKET_MB = 0.02  # several buckets
ADAMW = {"lr": 1e-2, "weight_decay": 0.1}


def model(dtype: torch.dtype = torch.float32) -> nn.Module:
    return fresh(lambda: mlp(WIDTH)).to(dtype)


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Equal to the last bit."""
    raw = [t.detach().contiguous().flatten().view(torch.uint8) for t in (a, b)]
    return a.shape == b.shape and a.dtype == b.dtype and torch.equal(*raw)


def values(ddp: DistributedDataParallel) -> list[torch.Tensor]:
    """The parameters, whole at any stage. Collective."""
    whole = ddp.full_state_dict()
    return [whole[name] for name, _ in ddp.module.named_parameters()]


def wrapped(stage: int, backend: str = "ringdp", **arguments: Any) -> DistributedDataParallel:
    arguments.setdefault("bucket_cap_mb", BUCKET_MB)
    return DistributedDataParallel(model(), process_group=group_of(backend), zero_stage=stage, **arguments)


def steps(ddp: Any, optimizer: Any, count: int, start: int = 0) -> None:
    """The plain loop."""
    for step in range(start, start + count):
        optimizer.zero_grad()
        loss_of(ddp, HERE.rank, step, 0).backward()
        optimizer.step()


def reference(
    kind: str, count: int, given: dict[str, Any], **arguments: Any
) -> tuple[nn.Module, torch.optim.Optimizer]:
    """One process, as many virtual ranks as there are here."""
    plain = model()
    optimizer = getattr(torch.optim, kind)(plain.parameters(), **given)
    one_process(plain, optimizer, loss_of, ranks=HERE.size, steps=count, **arguments)
    return plain, optimizer


def differences(ddp: Any, optimizer: ZeroOptimizer, plain: nn.Module, alone: torch.optim.Optimizer) -> list[str]:
    """Names of parameters, and on rank 0 of state, that are not equal bit for bit. Collective."""
    found = ddp.full_state_dict() if isinstance(ddp, DistributedDataParallel) else dict(ddp.named_parameters())
    named = {name.removeprefix("module."): value for name, value in found.items()}
    wrong = [name for name, b in plain.named_parameters() if not same(named[name], b)]
    optimizer.consolidate_state_dict(to=0)
    if HERE.rank != 0:
        return wrong
    expected, found = alone.state_dict(), optimizer.state_dict()
    wrong += ["groups"] * (_options(expected) != _options(found))
    for index, entry in expected["state"].items():
        ours = found["state"].get(index, {})
        for key, value in entry.items():
            right = same(value, ours[key]) if torch.is_tensor(value) and key in ours else value == ours.get(key)
            wrong += [] if right else [f"state {index} {key}"]
    return wrong


def _options(state_dict: dict[str, Any]) -> list[dict[str, Any]]:
    return [{k: v for k, v in group.items() if k != "param_names"} for group in state_dict["param_groups"]]
