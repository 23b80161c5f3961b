"""One rank of ledger.py: a training with compress="auto:...", another that follows its decisions, and steps by turns.

The JOB of runner/job.py is the JSON of Job. Needs torch and ringdp.
"""

from __future__ import annotations

import hashlib
import random
import time
from dataclasses import dataclass
from typing import Any

import ringdp
import torch
import torch.distributed as dist
from ringdp.compress import Auto, Codes
from runner.job import change_network, serve
from torch import nn

BLOCK = 5  # steps
WARM_UP = 1  # blocks of each


@dataclass(frozen=True)
class Job:
    """method: "int8", say. steps: after which it should have decided. later: steps after those, in a network that has
    changed. blocks: of BLOCK steps each, of every training by turns. layers, width, batch: of the model.
    """

    method: str
    steps: int
    later: int
    blocks: int
    layers: int
    width: int
    batch: int
    backend: str = "ringdp"


class Training:
    """Of the same model on the same samples, whatever compresses its gradients."""

    def __init__(self, job: Job, compress: Any) -> None:
        torch.manual_seed(0)
        layers = [nn.Linear(job.width, job.width) for _ in range(job.layers)]
        model = nn.Sequential(*(part for layer in layers for part in (layer, nn.Tanh())))
        self.ddp = ringdp.DistributedDataParallel(model, compress=compress)
        self._optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        self._samples = torch.Generator().manual_seed(1 + dist.get_rank())
        self._shape = (job.batch, job.width)

    def run(self, steps: int) -> None:
        """So many of them."""
        for _ in range(steps):
            sample = torch.randn(self._shape, generator=self._samples)
            self.ddp(sample).square().mean().backward()
            self._optimizer.step()
            self._optimizer.zero_grad()

    def hash(self) -> str:
        """Of the parameters."""
        digest = hashlib.sha256()
        for parameter in self.ddp.parameters():
            digest.update(parameter.detach().numpy().tobytes())
        return digest.hexdigest()


def by_turns(trainings: dict[str, Training], blocks: int) -> dict[str, list[float]]:
    """Seconds of a step by training and block. Collective."""
    times: dict[str, list[float]] = {name: [] for name in trainings}
    for number in range(WARM_UP + blocks):
        for name in random.Random(number).sample(list(trainings), len(trainings)):
            dist.barrier()
            began = time.perf_counter()
            trainings[name].run(BLOCK)
            if number >= WARM_UP:
                times[name].append((time.perf_counter() - began) / BLOCK)
    return times


def run(job: Job) -> dict[str, Any]:
    """Decisions, hashes, times. Collective."""
    own = Training(job, f"auto:{job.method}")
    own.run(job.steps)
    if job.later:
        dist.barrier()
        if dist.get_rank() == 0:
            change_network()
        dist.barrier()
        own.run(job.later)
    decisions = own.ddp.ledger().decisions
    hashes = [own.hash()]
    follower = Training(job, Auto(Codes(job.method), tuple(decisions)))
    follower.run(job.steps + job.later)
    hashes.append(follower.hash())
    times = by_turns({"plain": Training(job, None), "codes": Training(job, job.method), "auto": own}, job.blocks)
    return {"decisions": decisions, "hashes": hashes, "times": times}


if __name__ == "__main__":
    serve(lambda job: run(Job(**job)))
