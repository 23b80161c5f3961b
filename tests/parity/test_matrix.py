"""N ranks end with the state of one process: every model, number of ranks, bucket size, overlap setting, transport.

`make test` runs a slice in which every value of every axis occurs; `make test-all` runs the product.

A batch in parts has the gradient of the whole: 64 samples on one rank are 8 on each of 8.
"""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest
import torch
import training
from ranks import HERE, group_of
from ringdp.ddp.wrapper import DistributedDataParallel
from torch import nn
from training import BUCKETS, MODELS, STEPS, Cell, cells_between_hosts, in_one_process, on_this_rank

pytestmark = pytest.mark.usefixtures("one_thread")
RANKS = (2, 3, 4, 8)
PATHS = ("shm", "tcp", "gloo")
PROGRAM = Path(training.__file__)
HOSTS_LIMIT_S = 1200.0  # every cell on eight ranks


def in_slice(model: str, ranks: int, bucket: str, overlap: bool, path: str) -> bool:
    """One cell per model and path; the other axes go round, three ranks most often: the fewest with two orders."""
    number = MODELS.index(model) * len(PATHS) + PATHS.index(path)
    wanted = ((3, 4, 3, 2, 3, 8)[number % 6], list(BUCKETS)[(number + number // 3) % 3], number % 4 < 2)
    return (ranks, bucket, overlap) == wanted


CELLS = [
    pytest.param(ranks, path, Cell(model, bucket, overlap), marks=() if chosen else pytest.mark.long)
    for model, ranks, bucket, overlap, path in product(MODELS, RANKS, BUCKETS, (True, False), PATHS)
    for chosen in [in_slice(model, ranks, bucket, overlap, path)]
]


def run_cell(cell: Cell, over_gloo: bool) -> str:
    """On a rank."""
    return on_this_rank(cell, STEPS, group_of("gloo") if over_gloo else None)


@pytest.mark.parametrize(("ranks", "path", "cell"), CELLS, ids=str)
def test_ranks_end_as_one_process(world_of, ranks, path, cell):
    world = world_of(ranks, transport="tcp") if path == "tcp" else world_of(ranks)
    expected = in_one_process(cell.model, ranks, STEPS)
    assert world.run(run_cell, cell, path == "gloo") == [expected] * ranks


@pytest.mark.parametrize(
    ("per_host", "which"), [(2, "slice"), *(pytest.param(n, "all", marks=pytest.mark.long) for n in (1, 2, 4))]
)
def test_ranks_on_two_hosts_end_as_one_process(make_job, per_host, which):
    job = make_job(2, per_host, program=PROGRAM, limit_s=HOSTS_LIMIT_S)
    said = job.run(which)
    expected = {str(cell): in_one_process(cell.model, 2 * per_host, STEPS) for cell in cells_between_hosts(which)}
    assert said == [expected] * (2 * per_host)


def test_the_premise_holds_here():
    """One process twice has the same bits, and they depend on the number of ranks: equality means something."""
    in_one_process.cache_clear()
    first = [in_one_process("mlp", ranks, 3) for ranks in (2, 3)]
    in_one_process.cache_clear()
    assert [in_one_process("mlp", ranks, 3) for ranks in (2, 3)] == first
    assert len(set(first)) == 2


def test_the_slice_has_every_value():
    cells = [(c.values[0], c.values[1], *vars(c.values[2]).values()) for c in CELLS if not c.marks]
    assert [len(set(axis)) for axis in zip(*cells, strict=True)] == [4, 3, 5, 3, 2]


def gradient_of_64(ranks: int) -> torch.Tensor:
    """On a rank: the gradient of a batch of 64, this rank's part of it being 64 / ranks."""
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(10, 20), nn.Tanh(), nn.Linear(20, 2)).double()
    x, y = torch.randn(64, 10).double(), torch.randn(64, 2).double()
    part = 64 // ranks
    mine = slice(HERE.rank * part, (HERE.rank + 1) * part)
    ddp = DistributedDataParallel(model)
    nn.functional.mse_loss(ddp(x[mine]), y[mine]).backward()
    return torch.cat([p.grad.flatten() for p in model.parameters()])


def test_eight_ranks_of_eight_are_one_of_sixty_four(world_of):
    whole = world_of(1).run(gradient_of_64, 1)[0]
    for parts in world_of(8).run(gradient_of_64, 8):
        assert torch.allclose(parts, whole, rtol=0, atol=1e-15)
