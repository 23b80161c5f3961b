"""One rank: the same training step unwatched and watched, every lane a few steps per round, each time in another order.

The JOB of race/job_rank.py is the JSON of Job.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import ringdp
import torch
import torch.distributed as dist
from race.job_rank import serve
from ringdp.planner import workload
from torch.utils.data import DataLoader, DistributedSampler

PLAIN = "unwatched"
LANES = (PLAIN, "check_drift", "audit", "RunLog")
WARM_UP = 2  # rounds: page faults, the rebuild of buckets, the bytes that an audit hashes first


@dataclass(frozen=True)
class Job:
    """`steps` of each lane in each of `rounds`; workload: as `ringdp plan --model`."""

    workload: str
    micro_batch: int
    rounds: int
    steps: int
    backend: str = "ringdp"


class Lane:
    """A model of its own with its own loader, watched in one way."""

    def __init__(self, name: str, job: Job) -> None:
        chosen = workload.load(job.workload)
        self._loss = chosen.loss
        torch.manual_seed(1)
        samples = list(chosen.batch(job.micro_batch * dist.get_world_size() * job.steps * (job.rounds + WARM_UP)))
        sampler: DistributedSampler[Any] = DistributedSampler(samples)  # type: ignore[arg-type]
        self._loader = DataLoader(samples, job.micro_batch, sampler=sampler)  # type: ignore[arg-type]
        self.audit = ringdp.audit(self._loader) if name == "audit" else None
        self._batches: Iterator[Any] = iter(self._loader)
        self._ddp = ringdp.DistributedDataParallel(chosen.model(), check_drift=name == "check_drift")
        self._optimizer = chosen.optimizer(self._ddp.parameters())
        self._log = ringdp.RunLog(self._ddp, self._optimizer) if name == "RunLog" else None

    def _step(self) -> None:
        self._optimizer.zero_grad()
        loss = self._loss(self._ddp, next(self._batches))
        loss.backward()
        self._optimizer.step()
        if self._log:
            self._log.step(loss)

    def run(self, steps: int) -> dict[str, float]:
        """Seconds and CPU seconds of this process of one step, on average."""
        dist.barrier()
        start, cpu = time.perf_counter(), time.process_time()
        for _ in range(steps):
            self._step()
        return {"seconds": (time.perf_counter() - start) / steps, "cpu": (time.process_time() - cpu) / steps}


def _events() -> int:
    return int(ringdp.stats()["trace"]["written"])


def run(told: dict[str, Any]) -> dict[str, Any]:
    """By lane: what each round measured; events: how many each step leaves in the recorder, which is always on."""
    job = Job(**told)
    lanes = {name: Lane(name, job) for name in LANES}
    measured: dict[str, list[dict[str, float]]] = {name: [] for name in lanes}
    events = 0
    for number in range(-WARM_UP, job.rounds):
        for name in random.Random(number).sample(LANES, len(LANES)):
            before = _events()
            took = lanes[name].run(job.steps)
            if number >= 0:
                measured[name].append(took)
                events += (_events() - before) if name == PLAIN else 0
    return {"lanes": measured, "events": events / (job.rounds * job.steps)}


if __name__ == "__main__":
    serve(run)
