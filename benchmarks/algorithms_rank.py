"""One rank of algorithms.py: every algorithm sums a tensor per round and size, in another order each round.

The JOB of runner/job.py is the JSON of Job.
"""

from __future__ import annotations

import random
import time
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from runner.job import serve

WARM_UP = 2  # rounds: connections, page faults
VALUES = 8  # whole numbers below it, whose sums are exact in every order


@dataclass(frozen=True)
class Job:
    """`settings`: of a group per algorithm. `sizes`: bytes of a float32 tensor."""

    settings: dict[str, dict[str, str]]
    sizes: list[int]
    rounds: int
    backend: str = "ringdp"


def inputs(size: int) -> list[torch.Tensor]:
    """By rank; a part of it is repeated, as random numbers take long to make."""
    count = max(1, size // 4)
    source = [torch.Generator().manual_seed(rank) for rank in range(dist.get_world_size())]
    parts = [torch.randint(VALUES, (min(count, 65_537),), generator=s, dtype=torch.float32) for s in source]
    return [part.repeat(-(-count // part.numel()))[:count] for part in parts]


def timed(group: dist.ProcessGroup, mine: torch.Tensor, want: torch.Tensor) -> float:
    """Seconds of one all_reduce. RuntimeError if the sum is wrong."""
    dist.barrier()
    start = time.perf_counter()
    dist.all_reduce(mine, group=group)
    seconds = time.perf_counter() - start
    if not torch.equal(mine, want):
        raise RuntimeError(f"an all_reduce of {mine.nbytes} bytes in {group.group_desc} is wrong")
    return seconds


def run(job: Job) -> dict[str, Any]:
    """Seconds by size, algorithm and round. Collective."""
    groups = {
        name: dist.new_group(backend="ringdp", pg_options=settings, group_desc=name)
        for name, settings in job.settings.items()
    }
    seconds: dict[str, dict[str, list[float]]] = {}
    for size in job.sizes:
        all_ranks = inputs(size)
        want, mine = torch.stack(all_ranks).sum(0), all_ranks[dist.get_rank()]
        seconds[str(size)] = {name: [] for name in groups}
        for number in range(WARM_UP + job.rounds):
            for name in random.Random(number).sample(sorted(groups), len(groups)):
                took = timed(groups[name], mine.clone(), want)
                if number >= WARM_UP:
                    seconds[str(size)][name].append(took)
    return seconds


if __name__ == "__main__":
    serve(lambda job: run(Job(**job)))
