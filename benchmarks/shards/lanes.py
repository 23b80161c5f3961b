"""The trainings that race: ringdp's stages over ringdp, and what torch has for each stage over gloo."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ringdp
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel as Stock
from torch.optim import AdamW, Optimizer

from shards.names import PREFETCH_OFF, RIVALS, in_forward, ours

RATE = 1e-4


@dataclass(frozen=True)
class Training:
    """A wrapped model and its optimizer."""

    module: nn.Module
    optimizer: Optimizer

    @property
    def knows_exposed(self) -> bool:
        """Whether it is ringdp's."""
        return isinstance(self.optimizer, ringdp.ZeroOptimizer)

    def turn(self, x: torch.Tensor, y: torch.Tensor) -> tuple[float, float]:
        """A step, and without a pause a second one, which also pays for what the first has left on its way.

        Seconds of the second, and those in which this rank waited for parameters, with nothing to compute.
        """
        dist.barrier()
        self._step(x, y)
        start, before = time.perf_counter(), self._waited()
        self._step(x, y)
        took, waited = time.perf_counter() - start, self._waited() - before
        gathers = self.module.gathers() if self.knows_exposed and self.optimizer.stage == 3 else None
        return took, gathers.exposed if gathers else waited

    def _step(self, x: torch.Tensor, y: torch.Tensor) -> None:
        self.optimizer.zero_grad()
        nn.functional.mse_loss(self.module(x), y).backward()
        self.optimizer.step()

    def _waited(self) -> float:
        """Of stages 1 and 2, so far."""
        return self.optimizer.exposed if self.knows_exposed else 0.0


def of_ringdp(model: nn.Module, stage: int, gather: str = "step", **arguments: Any) -> Training:
    """Over the default group."""
    ddp = ringdp.DistributedDataParallel(model, gradient_as_bucket_view=True, zero_stage=stage, **arguments)
    return Training(ddp, ringdp.ZeroOptimizer(ddp.parameters(), AdamW, lr=RATE, gather=gather))


def of_torch(model: nn.Module, stage: int, group: dist.ProcessGroup) -> Training:
    """Its own way to the same memory."""
    if stage == 1:
        ddp = Stock(model, process_group=group, gradient_as_bucket_view=True)
        return Training(ddp, ZeroRedundancyOptimizer(ddp.parameters(), AdamW, process_group=group, lr=RATE))
    mesh = DeviceMesh.from_group(group, "cpu")
    for layer in model:
        if any(True for _ in layer.parameters()):
            fully_shard(layer, mesh=mesh, reshard_after_forward=stage == 3)
    fully_shard(model, mesh=mesh, reshard_after_forward=stage == 3)
    return Training(model, AdamW(model.parameters(), lr=RATE))


def lanes(stages: list[int], make: Callable[[], nn.Module], group: dist.ProcessGroup) -> dict[str, Training]:
    """ringdp and torch at every stage, stage 3 also without prefetch, others with both gathers. Collective."""
    found: dict[str, Training] = {}
    for stage in stages:
        found[ours(stage)] = of_ringdp(make(), stage)
        if stage == 3:
            found[PREFETCH_OFF] = of_ringdp(make(), stage, prefetch=False)
        else:
            found[in_forward(stage)] = of_ringdp(make(), stage, gather="forward")
        found[RIVALS[stage]] = of_torch(make(), stage, group)
    return found
