"""One rank of round_trips.py: every call by turns over ringdp and gloo, in another order each round.

The JOB of runner/job.py is the JSON of Job. Clocks are those of one machine, so begins and ends of ranks compare.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from runner.job import serve
from torch import nn
from torch.nn.parallel import DistributedDataParallel

BACKENDS = ("ringdp", "gloo")
BUCKETS, WIDTH = 12, 512  # of 1 MiB: the weights of a layer
IN_A_ROW = 16
WARM_UP = 2


@dataclass(frozen=True)
class Job:
    """How often every call is made."""

    rounds: int
    backend: str = "ringdp"


def summed(group: dist.ProcessGroup, sizes: list[int]) -> None:
    """all_reduces of float32 tensors of so many bytes, all called before the first is waited for."""
    ranks = dist.get_world_size()
    tensors = [torch.full((size // 4,), float(dist.get_rank() + 1)) for size in sizes]
    for work in [dist.all_reduce(tensor, group=group, async_op=True) for tensor in tensors]:
        work.wait()
    if any(not torch.equal(tensor, torch.full_like(tensor, ranks * (ranks + 1) / 2)) for tensor in tensors):
        raise RuntimeError(f"an all_reduce over {group.group_desc} is wrong")


def model() -> nn.Sequential:
    """Equal on all ranks."""
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(BUCKETS)))


def loss(of: nn.Module) -> torch.Tensor:
    """This rank's."""
    batch = torch.randn(16, WIDTH, generator=torch.Generator().manual_seed(dist.get_rank()))
    return of(batch).square().mean()


def timed(call: Callable[[], object]) -> tuple[float, float]:
    """When it began and ended."""
    began = time.monotonic()
    call()
    return began, time.monotonic()


def made(backend: str) -> None:
    """A group; it is left for the end, as the others may still be making it."""
    dist.new_group(backend=backend)


def run(job: Job) -> dict[str, Any]:
    """Begin and end by call, backend and round; seconds of computing by round. Collective."""
    groups = {backend: dist.new_group(backend=backend, group_desc=backend) for backend in BACKENDS}
    models = {
        backend: DistributedDataParallel(model(), process_group=group, bucket_cap_mb=1)
        for backend, group in groups.items()
    }
    calls: dict[str, Callable[[str], object]] = {
        "4 KiB": lambda backend: summed(groups[backend], [4 << 10]),
        f"{IN_A_ROW} x 64 KiB": lambda backend: summed(groups[backend], [64 << 10] * IN_A_ROW),
    }
    times: dict[str, dict[str, list[tuple[float, float]]]] = {}

    def note(call: str, backend: str, number: int, interval: tuple[float, float]) -> None:
        kept = times.setdefault(call, {each: [] for each in BACKENDS})[backend]
        if number >= WARM_UP:
            kept.append(interval)

    alone, compute = model(), []
    for number in range(WARM_UP + job.rounds):
        for backend in random.Random(number).sample(BACKENDS, len(BACKENDS)):
            for call, made_by in calls.items():
                dist.barrier()
                note(call, backend, number, timed(lambda run=made_by, by=backend: run(by)))
            models[backend].zero_grad()
            own = loss(models[backend])
            dist.barrier()
            note(f"{BUCKETS} x 1 MiB", backend, number, timed(own.backward))
            dist.barrier()
            note("group", backend, number, timed(lambda by=backend: made(by)))
        gradients = [[parameter.grad for parameter in each.parameters()] for each in models.values()]
        if not all(torch.allclose(one, other) for one, other in zip(*gradients, strict=True)):
            raise RuntimeError("the mean gradients of the backends differ")
        own = loss(alone)
        began, ended = timed(own.backward)
        compute.append(ended - began)
    return {"times": times, "compute": compute[WARM_UP:]}


if __name__ == "__main__":
    serve(lambda job: run(Job(**job)))
