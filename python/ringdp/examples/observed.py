"""What a run observes of itself when it has trained: memory beside its formula, overlap, links and why."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

import ringdp
from ringdp.ddp.timeline import BucketTimes
from ringdp.examples.parallel import memory_of
from ringdp.planner.formulas import stage_bytes
from ringdp.zero.memory import Memory

# AdamW in float32: bytes per parameter of weights, gradients, and of two moments.
WEIGHT_BYTES, GRADIENT_BYTES, STATE_BYTES = 4, 4, 8


@dataclass(frozen=True)
class Overlap:
    """The latest step of the reducer on rank 0, in seconds; buckets since the backward pass began."""

    step: int
    forward: float
    backward: float
    wait: float
    communication: float
    exposed: float
    overlap: float
    verdict: str
    buckets: tuple[BucketTimes, ...]


@dataclass(frozen=True)
class Observed:
    """Of rank 0. memory, overlap: None under torch's wrapper, which keeps no account.

    formula_bytes: what memory is by the planner's formula. links: lines of the backend's own description.
    """

    parameters: int
    memory: Memory | None
    formula_bytes: float
    overlap: Overlap | None
    links: list[str]


def observe(model: torch.nn.Module, ddp: torch.nn.Module, optimizer: torch.optim.Optimizer, stage: int) -> Observed:
    """After a training step, before gradients are dropped. `model`: with all its parameters."""
    parameters = sum(p.numel() for p in model.parameters())
    return Observed(
        parameters=parameters,
        memory=memory_of(ddp, optimizer),
        formula_bytes=stage_bytes(parameters, dist.get_world_size(), stage, WEIGHT_BYTES, GRADIENT_BYTES, STATE_BYTES),
        overlap=_overlap(ddp),
        links=links_of_default_group(),
    )


def links_of_default_group() -> list[str]:
    """How bytes reach each peer and which plan runs, with reasons; empty where the backend does not say."""
    backend: Any = dist.distributed_c10d._get_default_group()._get_backend(torch.device("cpu"))
    return backend.describe().splitlines() if hasattr(backend, "describe") else []


def _overlap(ddp: torch.nn.Module) -> Overlap | None:
    if not isinstance(ddp, ringdp.DistributedDataParallel):
        return None
    times = ddp.times()
    names = ("step", "forward", "backward", "wait", "communication", "exposed", "overlap", "verdict", "buckets")
    return Overlap(**{name: getattr(times, name) for name in names})
