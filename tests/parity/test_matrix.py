"""N ranks end with the state of one process: every model, number of ranks, bucket size, overlap setting, transport.

`make test` runs a slice in which every value of every axis occurs; `make test-all` runs the product.
"""

from __future__ import annotations

from itertools import product

import pytest
import torch
from parity_models import MODELS
from ranks import group_of
from training import BUCKETS, STEPS, Cell, cells_between_hosts, in_one_process, on_this_rank

RANKS = (2, 3, 4, 8)
PATHS = ("shm", "tcp", "gloo")


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
def test_ranks_on_two_hosts_end_as_one_process(two_hosts, per_host, which):
    job = two_hosts(per_host)
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


@pytest.fixture(autouse=True)
def one_thread():
    """As the ranks."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
