"""One rank of leaves.py: every mode takes a step per round, in another order each round.

The JOB of runner/job.py is the JSON of Job.
"""

from __future__ import annotations

import copy
import random
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import ringdp
import torch
import torch.distributed as dist
from ringdp.examples.gpt import GPT, Shape
from runner.job import serve
from torch import Tensor, nn

RANK_ORDER = "rank order"
# mode -> arguments of the wrapper; with leaves the last one is the default
MODES: dict[str, dict[str, Any]] = {
    RANK_ORDER: {},
    "rank order, views": {"gradient_as_bucket_view": True},
    "micro_batches, overlap=False": {"overlap": False},
    "micro_batches": {},
}
WARM_UP = 3  # rounds: page faults, the rebuild of buckets, and the steps after which a step is expected


@dataclass(frozen=True)
class Job:
    """`leaves`: per rank and step."""

    backend: str
    model: str
    leaves: int
    rounds: int


def _mlp() -> tuple[nn.Module, Callable[[torch.Generator], Tensor]]:
    layers = [nn.Linear(1024, 4096), *(nn.Linear(4096, 4096) for _ in range(3)), nn.Linear(4096, 1024)]
    model = nn.Sequential(*(part for layer in layers for part in (layer, nn.ReLU())))
    return model, lambda source: torch.randn(4, 1024, generator=source)


def _gpt() -> tuple[nn.Module, Callable[[torch.Generator], Tensor]]:
    model = GPT(Shape(dim=320, layers=8, heads=5))
    return model, lambda source: torch.randint(256, (4, 128), generator=source)


MODELS = {"mlp": _mlp, "gpt": _gpt}


class Mode:
    """One mode: its own copy of the model and of the optimizer."""

    def __init__(self, name: str, model: nn.Module, job: Job) -> None:
        self._in_leaves = name.startswith("micro_batches")
        arguments = dict(MODES[name])
        if self._in_leaves:
            arguments["micro_batches"] = job.leaves * dist.get_world_size()
        self.ddp = ringdp.DistributedDataParallel(copy.deepcopy(model), **arguments)
        self._optimizer = torch.optim.SGD(self.ddp.parameters(), lr=1e-3)

    def step(self, number: int, batches: list[Tensor]) -> float:
        """Seconds of one training step on this rank's leaves."""
        dist.barrier()
        start = time.perf_counter()
        first = dist.get_rank() * len(batches)
        for leaf, x in enumerate(batches):
            with self._scope(number, first + leaf, leaf + 1 == len(batches)):
                self.ddp(x).square().mean().backward()
        self._optimizer.step()
        self._optimizer.zero_grad()
        return time.perf_counter() - start

    def _scope(self, step: int, leaf: int, last: bool) -> Any:
        if self._in_leaves:
            return ringdp.leaf(step, leaf)
        return nullcontext() if last else self.ddp.no_sync()


def run(job: Job) -> dict[str, Any]:
    """Every mode, round by round. Collective."""
    torch.manual_seed(0)
    model, batch = MODELS[job.model]()
    modes = {name: Mode(name, model, job) for name in MODES}
    seconds: dict[str, list[float]] = {name: [] for name in modes}
    source = torch.Generator().manual_seed(1 + dist.get_rank())
    for number in range(WARM_UP + job.rounds):
        batches = [batch(source) for _ in range(job.leaves)]
        for name in random.Random(number).sample(sorted(modes), len(modes)):
            took = modes[name].step(number, batches)
            if number >= WARM_UP:
                seconds[name].append(took)
    return {"seconds": seconds, "parameters": sum(p.numel() for p in model.parameters())}


if __name__ == "__main__":
    serve(lambda job: run(Job(**job)))
