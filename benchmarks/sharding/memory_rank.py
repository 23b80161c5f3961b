"""One rank of benchmarks/zero_memory.py: some steps at one stage; what they took, phase by phase, and what was sent.

The JOB of runner/job.py is the JSON of Job.
"""

from __future__ import annotations

import gc
import os
import time
from dataclasses import dataclass
from typing import Any

import ringdp
import torch
import torch.distributed as dist
from ringdp.testing import parameters_hash
from runner.job import serve
from torch import nn
from torch.optim import AdamW

from sharding.memory import pss
from sharding.model import MasteredAdamW, mlp
from sharding.stages import BF16

RATE = 1e-4
ROWS = 4
PHASES = ("forward", "backward", "step")


@dataclass(frozen=True)
class Job:
    """A layers x width MLP; `micro_batches` synchronised backward passes per step."""

    backend: str
    stage: int
    dtype: str
    layers: int
    width: int
    steps: int
    micro_batches: int

    @property
    def torch_dtype(self) -> torch.dtype:
        """The type of parameters and gradients."""
        return torch.bfloat16 if self.dtype == BF16 else torch.float32

    def model(self) -> nn.Module:
        """Without biases: every parameter is a whole number of blocks, and nothing is padded."""
        return mlp(self.layers, self.width, bias=False, dtype=self.torch_dtype)


def run(job: Job) -> dict[str, Any]:
    """Collective."""
    _warm_up()
    baseline = pss()
    dist.barrier()
    ddp, optimizer = _wrapped(job)
    gc.collect()
    dist.barrier()
    training = Training(job, ddp, optimizer)
    begin, before = time.monotonic(), _counted()
    for _ in range(job.steps):
        training.step()
    end, after = time.monotonic(), _counted()
    dist.barrier()  # all have measured, before one makes the parameters whole
    whole = job.model()
    whole.load_state_dict(ddp.full_state_dict())
    return {
        "pid": os.getpid(),
        "baseline": baseline,
        "begin": begin,
        "end": end,
        "peaks": training.peaks,
        "account": training.account,
        "sent": (after["wire_bytes_sent"] - before["wire_bytes_sent"]) / job.steps,
        "collectives": (after["collectives"] - before["collectives"]) / job.steps,
        "hash": parameters_hash(whole),
    }


class Training:
    """Steps, and the largest memory at the end of each phase of any."""

    def __init__(self, job: Job, ddp: nn.Module, optimizer: Any) -> None:
        self._job, self._ddp, self._optimizer = job, ddp, optimizer
        self._source = torch.Generator().manual_seed(1 + dist.get_rank())
        self.peaks = dict.fromkeys(PHASES, 0)
        self.account: dict[str, int] = {}

    def step(self) -> None:
        """Gradients add up over the micro-batches, each of which is averaged over the ranks."""
        self._optimizer.zero_grad()
        for _ in range(self._job.micro_batches):
            x = torch.randn(ROWS, self._job.width, generator=self._source).to(self._job.torch_dtype)
            loss = self._ddp(x).square().mean()
            self._saw("forward")
            loss.backward()
            self._saw("backward")
        self._optimizer.step()
        self._saw("step")
        account = self._ddp.memory()
        self.account = {name: getattr(account, name) for name in account.__dataclass_fields__}

    def _saw(self, phase: str) -> None:
        self.peaks[phase] = max(self.peaks[phase], pss())


def _wrapped(job: Job) -> tuple[nn.Module, Any]:
    ddp = ringdp.DistributedDataParallel(job.model(), gradient_as_bucket_view=True, zero_stage=job.stage)
    mixed = job.dtype == BF16
    if job.stage:
        master = torch.float32 if mixed else None
        return ddp, ringdp.ZeroOptimizer(ddp.parameters(), AdamW, lr=RATE, master_dtype=master)
    return ddp, MasteredAdamW(ddp, RATE) if mixed else AdamW(ddp.parameters(), lr=RATE)


def _warm_up() -> None:
    """Libraries, threads and connections exist before anything is measured."""
    warm = nn.Linear(64, 64)
    optimizer = AdamW(warm.parameters())
    warm(torch.randn(8, 64)).sum().backward()
    optimizer.step()
    dist.all_reduce(torch.ones(1 << 16))
    del warm, optimizer
    gc.collect()
    dist.barrier()


def _counted() -> dict[str, int]:
    return dist.group.WORLD._get_backend(torch.device("cpu")).counters()


if __name__ == "__main__":
    serve(lambda job: run(Job(**job)))
