"""One training, twice: on this rank behind `ringdp.DistributedDataParallel`, and in one process."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from itertools import product

import parity_models as models
import torch
import torch.distributed as dist
from ringdp.ddp.wrapper import DistributedDataParallel
from ringdp.testing import one_process

STEPS = 50
BUCKETS = {"1KB": 1 / 1024, "1MB": 1.0, "25MB": 25.0}


@dataclass(frozen=True)
class Cell:
    """One cell of the matrix. bucket: a key of BUCKETS."""

    model: str
    bucket: str
    overlap: bool

    def __str__(self) -> str:
        return f"{self.model} {self.bucket} {'overlap' if self.overlap else 'blocking'}"


def cells_between_hosts(which: str) -> list[Cell]:
    """which: "slice", a cell per model with the other axes going round, or "all"."""
    if which == "all":
        return [Cell(*axes) for axes in product(models.MODELS, BUCKETS, (True, False))]
    buckets = list(BUCKETS)
    return [Cell(name, buckets[n % len(buckets)], overlap=n % 2 == 0) for n, name in enumerate(models.MODELS)]


def on_this_rank(cell: Cell, steps: int, group: dist.ProcessGroup | None = None) -> str:
    """The state's hash after `steps` steps. Collective."""
    rank = dist.get_rank()
    model = models.make(cell.model)
    ddp = DistributedDataParallel(
        model,
        process_group=group,
        bucket_cap_mb=BUCKETS[cell.bucket],
        overlap=cell.overlap,
        find_unused_parameters=cell.model == "unused",
    )
    optimizer = models.optimizer_for(model)
    torch.manual_seed(models.dropout_seed(rank))
    for step in range(steps):
        optimizer.zero_grad()
        models.loss_of(cell.model, ddp, rank, step).backward()
        optimizer.step()
    return models.state_hash(model, optimizer)


@cache
def in_one_process(name: str, ranks: int, steps: int) -> str:
    """The same without any group."""
    model = models.make(name)
    optimizer = models.optimizer_for(model)

    def loss_of(model: torch.nn.Module, rank: int, step: int, micro: int) -> torch.Tensor:
        return models.loss_of(name, model, rank, step, micro)

    seeds = [models.dropout_seed(rank) for rank in range(ranks)]
    one_process(model, optimizer, loss_of, ranks=ranks, steps=steps, seeds=seeds)
    return models.state_hash(model, optimizer)
