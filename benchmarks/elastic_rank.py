"""One rank of elastic.py: a training that notes when it has applied a step, under one of SYSTEMS.

`python elastic_rank.py SYSTEM JOB`, with the JSON of Job; the rest comes from the environment, as its launcher sets it.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn


@dataclass(frozen=True)
class Job:
    """leaf_ms: what a micro-batch takes, asleep, besides what it computes. slow: how many times as long on rank 0.

    speed, shards: as survive() takes them. width: of the model. block: steps of "price" by turns. stage: of ZeRO.
    """

    folder: str
    steps: int
    micro_batches: int
    leaf_ms: float = 0.0
    slow: float = 1.0
    speed: str = "even"
    width: int = 256
    block: int = 20
    stage: int = 0
    shards: str = "auto"


@dataclass
class Notes:
    """A line per step that this process has applied: when, and with how many ranks; and lost samples."""

    folder: str
    lines: Any = field(init=False)

    def __post_init__(self) -> None:
        self.lines = open(Path(self.folder) / f"{os.getpid()}.steps", "w", buffering=1)  # noqa: SIM115

    def applied(self, ranks: int) -> None:
        """Now."""
        self.lines.write(json.dumps(["applied", time.monotonic(), ranks]) + "\n")

    def lost(self, samples: int) -> None:
        """By a step that was not applied, and is not repeated."""
        self.lines.write(json.dumps(["lost", time.monotonic(), samples]) + "\n")


def network(width: int) -> nn.Module:
    """The same on all ranks."""
    torch.manual_seed(0)
    layers = [nn.Linear(width, 4 * width), nn.ReLU(), nn.Linear(4 * width, width), nn.ReLU(), nn.Linear(width, 1)]
    return nn.Sequential(*layers)


def batch(width: int, step: int, leaf: int) -> Tensor:
    """Eight samples, a function of step and leaf."""
    return torch.randn(8, width, generator=torch.Generator().manual_seed(1000 * step + leaf))


def pause(job: Job, leaves: int) -> None:
    """For what these micro-batches would compute."""
    factor = job.slow if os.environ.get("LOCAL_RANK") == "0" else 1.0
    time.sleep(leaves * factor * job.leaf_ms / 1000)


def wrapped(job: Job) -> tuple[Any, torch.optim.Optimizer]:
    """The model under ringdp, and its optimizer."""
    import ringdp

    ddp = ringdp.DistributedDataParallel(network(job.width), micro_batches=job.micro_batches, zero_stage=job.stage)
    if job.stage:
        return ddp, ringdp.ZeroOptimizer(ddp.parameters(), torch.optim.AdamW, lr=1e-3)
    return ddp, torch.optim.AdamW(ddp.parameters(), lr=1e-3)


def ringdp_rank(job: Job) -> None:
    """Under `ringdp run --min-ranks`."""
    import ringdp

    dist.init_process_group("ringdp")
    ddp, optimizer = wrapped(job)
    notes = Notes(job.folder)

    def apply() -> None:
        optimizer.step()
        optimizer.zero_grad()
        notes.applied(dist.get_world_size())

    @ringdp.elastic.survive(model=ddp, optimizer=optimizer, apply=apply, speed=job.speed, shards=job.shards)
    def train(step: int, leaves: Sequence[int]) -> None:
        for leaf in leaves:
            with ringdp.leaf(step, leaf):
                ddp(batch(job.width, step, leaf)).square().mean().backward()
            pause(job, 1)

    train(job.steps)
    dist.destroy_process_group()


def restart_rank(job: Job) -> None:
    """Under torchrun --max-restarts: stock DDP, and a checkpoint after each step."""
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    ddp = nn.parallel.DistributedDataParallel(network(job.width))
    optimizer = torch.optim.AdamW(ddp.parameters(), lr=1e-3)
    saved = Path(job.folder) / "checkpoint"
    begin = 0
    if saved.exists():
        state = torch.load(saved)
        ddp.module.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        begin = state["step"] + 1
    notes = Notes(job.folder)
    for step in range(begin, job.steps):
        ddp(_own_batches(job, step, rank, ranks)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        if rank == 0:
            state = {"model": ddp.module.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
            torch.save(state, saved.with_suffix(".new"))
            saved.with_suffix(".new").replace(saved)
        notes.applied(ranks)
    dist.destroy_process_group()


def torchft_rank(job: Job) -> None:
    """A replica group of one rank, started by elastic.py, which has started the lighthouse."""
    from torchft import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo

    server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(server.port), "RANK": "0", "WORLD_SIZE": "1"}
    module = network(job.width)
    inner = torch.optim.AdamW(module.parameters(), lr=1e-3)

    def load(state: dict[str, Any]) -> None:
        module.load_state_dict(state["model"])
        inner.load_state_dict(state["optimizer"])

    manager = Manager(
        pg=ProcessGroupGloo(timeout=timedelta(seconds=5)),
        min_replica_size=1,
        load_state_dict=load,
        state_dict=lambda: {"model": module.state_dict(), "optimizer": inner.state_dict()},
        replica_id=f"replica_{os.environ['LOCAL_RANK']}_",
        timeout=timedelta(seconds=30),
    )
    ddp, optimizer = DistributedDataParallel(manager, module), Optimizer(manager, inner)
    notes = Notes(job.folder)
    while (step := manager.current_step()) < job.steps:
        optimizer.zero_grad()
        x = _own_batches(job, step, int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"]))
        ddp(x).square().mean().backward()
        optimizer.step()
        if manager.current_step() > step:
            notes.applied(manager.num_participants())
        else:
            notes.lost(len(x))
    manager.shutdown(wait=False)


def _own_batches(job: Job, step: int, rank: int, ranks: int) -> Tensor:
    leaves = range(rank, job.micro_batches, ranks)
    pause(job, len(leaves))
    return torch.cat([batch(job.width, step, leaf) for leaf in leaves])


def price_rank(job: Job) -> None:
    """Under `ringdp run --min-ranks`: steps of survive() and of a plain loop, in blocks by turns.

    The plain ones run in apply(), where a training without faults can communicate.
    """
    import ringdp

    dist.init_process_group("ringdp")
    (own_ddp, own_optimizer), (plain_ddp, plain_optimizer) = wrapped(job), wrapped(job)
    share = job.micro_batches // dist.get_world_size()
    own = range(dist.get_rank() * share, (dist.get_rank() + 1) * share)
    seconds: dict[str, list[float]] = {"survive": [], "plain": []}
    ended = time.perf_counter()

    def run(ddp: Any, step: int, leaves: Sequence[int]) -> None:
        for leaf in leaves:
            with ringdp.leaf(step, leaf):
                ddp(batch(job.width, step, leaf)).square().mean().backward()

    def update(optimizer: torch.optim.Optimizer) -> None:
        optimizer.step()
        optimizer.zero_grad()

    def timed(name: str) -> None:
        nonlocal ended
        now = time.perf_counter()
        seconds[name].append(now - ended)
        ended = now

    applied = 0

    def apply() -> None:
        nonlocal applied
        update(own_optimizer)
        timed("survive")
        applied += 1
        if applied % job.block:
            return
        for step in range(job.block):
            run(plain_ddp, step, own)
            update(plain_optimizer)
            timed("plain")

    survive = ringdp.elastic.survive(model=own_ddp, optimizer=own_optimizer, apply=apply, shards=job.shards)
    train = survive(lambda step, leaves: run(own_ddp, step, leaves))
    train(job.steps)
    (Path(job.folder) / f"{dist.get_rank()}.seconds").write_text(json.dumps(seconds))
    dist.destroy_process_group()


SYSTEMS: dict[str, Callable[[Job], None]] = {
    "ringdp": ringdp_rank,
    "restart": restart_rank,
    "torchft": torchft_rank,
    "price": price_rank,
}


if __name__ == "__main__":
    torch.set_num_threads(1)
    SYSTEMS[sys.argv[1]](Job(**json.loads(sys.argv[2])))
