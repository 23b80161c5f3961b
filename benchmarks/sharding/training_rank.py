"""One rank of benchmarks/zero.py: every training takes a turn per round, in another order each round.

The trainings are ringdp's stages over ringdp, and torch's program for each stage over gloo. The JOB of runner/job.py is
the JSON of Job.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import ringdp
import torch
import torch.distributed as dist
from ringdp.testing import parameters_hash
from runner.job import serve
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel as Stock
from torch.optim import AdamW, Optimizer

from sharding.model import mlp
from sharding.stages import PREFETCH_OFF, RIVALS, in_forward, ours

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
        """How long stages 1 and 2 have waited so far."""
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


def make_trainings(stages: list[int], make: Callable[[], nn.Module], group: dist.ProcessGroup) -> dict[str, Training]:
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


WARM_UP = 2  # rounds: state is made, buckets are laid out anew, the order of gathers is learned


@dataclass(frozen=True)
class Job:
    """A layers x width MLP on `rows` samples per rank, at these stages."""

    backend: str
    stages: list[int]
    rounds: int
    layers: int
    width: int
    rows: int


def run(job: Job) -> dict[str, Any]:
    """By training and round seconds and, of ringdp's, exposed gathers; hashes of what those end with. Collective."""
    make = partial(mlp, job.layers, job.width)
    trainings = make_trainings(job.stages, make, dist.new_group(backend="gloo"))
    seconds: dict[str, list[float]] = {name: [] for name in trainings}
    exposed: dict[str, list[float]] = {name: [] for name in trainings if trainings[name].knows_exposed}
    source = torch.Generator().manual_seed(1 + dist.get_rank())
    for number in range(-WARM_UP, job.rounds):
        x = torch.randn(job.rows, job.width, generator=source)
        for name in random.Random(number).sample(sorted(trainings), len(trainings)):
            took, waited = trainings[name].turn(x, x.flip(1))
            if number >= 0:
                seconds[name].append(took)
                if name in exposed:
                    exposed[name].append(waited)
    hashes = {name: _hash(t, make()) for name, t in trainings.items() if name not in RIVALS.values()}
    return {"seconds": seconds, "exposed": exposed, "hashes": hashes}


def _hash(training: Training, whole: torch.nn.Module) -> str:
    """A hash of all parameters, wherever they are. Collective at stage 3."""
    whole.load_state_dict(training.module.full_state_dict())
    return parameters_hash(whole)


if __name__ == "__main__":
    serve(lambda job: run(Job(**job)))
