"""One rank of watch.py: blocks of steps with ringdp.watch and without it, in turn.

The JOB of runner/job.py is the JSON of Job.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from operator import sub
from statistics import median
from typing import Any

import ringdp
import torch
import torch.distributed as dist
from ringdp.tools.watch.watch import Watch
from runner.job import serve
from sharding.model import mlp
from torch import nn

WRAPPERS = {"ringdp": ringdp.DistributedDataParallel, "torch": nn.parallel.DistributedDataParallel}
WARM_UP = 10  # steps


@dataclass(frozen=True)
class Job:
    """`pairs` of blocks of `steps` steps of about `step_ms`, of an MLP of layers x width."""

    backend: str
    wrapper: str
    pairs: int
    steps: int
    step_ms: float
    layers: int
    width: int


class Trainer:
    """A model whose batch is as large as makes its step that long."""

    def __init__(self, job: Job) -> None:
        self.ddp = WRAPPERS[job.wrapper](mlp(job.layers, job.width), bucket_cap_mb=2)
        self.optimizer = torch.optim.SGD(self.ddp.parameters(), lr=1e-3)
        self._width = job.width
        rows = torch.tensor(16)
        for _ in range(4):  # to a fixed point: a part of a step does not depend on the batch
            self._x = torch.randn(int(rows), job.width)
            self.steps(WARM_UP)
            rows = (rows * job.step_ms / (1e3 * self.steps(WARM_UP)[0])).clamp(1, 1 << 14).long()
            dist.broadcast(rows, 0)
        self._x = torch.randn(int(rows), job.width)
        self.steps(WARM_UP)

    def step(self) -> None:
        """One."""
        self.optimizer.zero_grad()
        self.ddp(self._x).square().mean().backward()
        self.optimizer.step()

    def steps(self, count: int) -> tuple[float, float]:
        """The median over so many steps, in seconds: how long one took, and what this thread has computed in it."""
        dist.barrier()
        times, computed = [], []
        for _ in range(count):
            began, before = time.perf_counter(), time.thread_time()
            self.step()
            times.append(time.perf_counter() - began)
            computed.append(time.thread_time() - before)
        return median(times), median(computed)

    def watched(self, count: int) -> tuple[tuple[float, float], dict[str, float]]:
        """The same with a watch, and what that has taken of the time of these steps."""
        watch: Watch = ringdp.watch(self.ddp, self.optimizer)
        self.steps(3 * WARM_UP)  # until it knows how much it can do
        before = [getattr(watch.measures, name) for name in _MEASURED]
        result = self.steps(count)
        after = [getattr(watch.measures, name) for name in _MEASURED]
        took = dict(zip(_MEASURED, map(sub, after, before), strict=True))
        dist.barrier()
        watch.stop()
        return result, {name: took[name] / took["step_seconds"] for name in _COSTS}


_COSTS = ("in_training", "in_thread")
_MEASURED = (*_COSTS, "step_seconds")


def run(job: Job) -> dict[str, Any]:
    """By pair: seconds of a step with and without, and the watch's own share. Collective."""
    trainer = Trainer(job)
    pairs = []
    for number in range(job.pairs):
        if number % 2:
            (on, cost), off = trainer.watched(job.steps), trainer.steps(job.steps)
        else:
            off, (on, cost) = trainer.steps(job.steps), trainer.watched(job.steps)
        pairs.append({"on": on, "off": off, **cost})
    return {"pairs": pairs, "parameters": sum(p.numel() for p in trainer.ddp.parameters())}


if __name__ == "__main__":
    serve(lambda job: run(Job(**job)))
