"""One rank of the ablation: every mode takes a step per round, in another order each round.

The JOB of runner/job.py is the JSON of Job.
"""

from __future__ import annotations

import copy
import random
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.distributed as dist
from ringdp import DistributedDataParallel
from ringdp.ddp.timeline import BucketTimes
from runner.job import serve
from sharding.model import mlp
from torch import nn

# mode -> arguments; "alone" does not communicate: what is left is the lower bound
MODES: dict[str, dict[str, Any]] = {
    "naive": {"bucket_cap_mb": 0, "overlap": False},
    "overlap per parameter": {"bucket_cap_mb": 0},
    "bucketed": {"overlap": False},
    "bucketed + overlap": {},
    "alone": {},
}
WARM_UP = 2  # rounds: page faults, and the rebuild of buckets


@dataclass(frozen=True)
class Job:
    """layers x width MLP on `rows` samples per rank; buckets of `bucket_mb` in the bucketed modes."""

    backend: str
    rounds: int
    layers: int
    width: int
    rows: int
    bucket_mb: float


@dataclass(frozen=True)
class Sample:
    """One step of one mode on this rank, in seconds. last: of the last bucket, from when its turn came."""

    step: float
    communication: float
    exposed: float
    last: float
    collectives: int


class Mode:
    """One mode: its own copy of the model and of the optimizer."""

    def __init__(self, name: str, model: nn.Module, job: Job) -> None:
        arguments = dict(MODES[name])
        if "bucket_cap_mb" not in arguments:
            arguments["bucket_cap_mb"] = job.bucket_mb
        self.ddp = DistributedDataParallel(copy.deepcopy(model), gradient_as_bucket_view=True, **arguments)
        self.optimizer = torch.optim.SGD(self.ddp.parameters(), lr=1e-3)
        self.alone = name == "alone"

    def step(self, x: torch.Tensor, y: torch.Tensor) -> Sample:
        """One training step on this rank's micro-batch."""
        dist.barrier()
        start = time.perf_counter()
        self.optimizer.zero_grad()
        with self.ddp.no_sync() if self.alone else nullcontext():
            nn.functional.mse_loss(self.ddp(x), y).backward()
        self.optimizer.step()
        seconds = time.perf_counter() - start
        times = self.ddp.times()
        return Sample(seconds, times.communication, times.exposed, own_time_of_last(times.buckets), len(times.buckets))


def own_time_of_last(buckets: Sequence[BucketTimes]) -> float:
    """Collectives of a group run one after the other: from when the last one's turn came."""
    if not buckets:
        return 0.0
    *others, last = buckets
    return last.done - max([last.launched, *(b.done for b in others)])


def run(job: Job) -> dict[str, Any]:
    """Every mode, round by round. Collective."""
    modes = {name: Mode(name, mlp(job.layers, job.width), job) for name in MODES}
    samples: dict[str, list[dict[str, float]]] = {name: [] for name in modes}
    source = torch.Generator().manual_seed(1 + dist.get_rank())
    for number in range(-WARM_UP, job.rounds):
        x = torch.randn(job.rows, job.width, generator=source)
        for name in random.Random(number).sample(sorted(modes), len(modes)):
            sample = modes[name].step(x, x.flip(1))
            if number >= 0:
                samples[name].append(asdict(sample))
    parameters = sum(p.numel() for p in modes["naive"].ddp.parameters())
    return {"samples": samples, "parameters": parameters}


if __name__ == "__main__":
    serve(lambda job: run(Job(**job)))
