"""One rank of benchmarks/zero.py: every training takes a turn per round, in another order each round.

The JOB of race/job_rank.py is the JSON of Job.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from race.job_rank import serve
from ringdp.testing import parameters_hash

from shards.lanes import Training, lanes
from shards.model import mlp
from shards.names import RIVALS

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
    trainings = lanes(job.stages, make, dist.new_group(backend="gloo"))
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
    """Of all parameters, wherever they are. Collective at stage 3."""
    whole.load_state_dict(training.module.full_state_dict())
    return parameters_hash(whole)


if __name__ == "__main__":
    serve(lambda job: run(Job(**job)))
