"""micro_batches=M: what ranks send and hold, counted, against the formula: for every M and N, exactly."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

import pytest
import ringdp
import torch
from leafy import allotment
from ranks import HERE
from ringdp.ddp.leaf_table import Told
from ringdp.ddp.wrapper import DistributedDataParallel
from ringdp.tools.planner.elastic import KINDS
from torch import nn

pytestmark = pytest.mark.usefixtures("one_thread")
(ELASTIC,) = KINDS
MICRO_BATCHES = (16, 24, 32, 256)
# Sums that a rank sends, on average: the design's table, by M and N.
SUMS = {
    16: {1: 1, 2: 1, 3: 2, 4: 1, 5: 1.8, 6: 1.7, 7: 1.3, 8: 1, 12: 1, 16: 1},
    24: {1: 1, 2: 1, 3: 2.3, 4: 1, 5: 2.2, 6: 2, 7: 1.4, 8: 1, 12: 1.3, 16: 1},
    32: {1: 1, 2: 1, 3: 2.7, 4: 1, 5: 2.4, 6: 2, 7: 1.6, 8: 1, 12: 1.7, 16: 1},
    256: {1: 1, 2: 1, 3: 4, 4: 1, 5: 3.8, 6: 3.7, 7: 2.6, 8: 1, 12: 3, 16: 1},
}
HELD = {1: 4, 2: 3, 3: 2, 4: 2, 5: 2, 6: 2, 7: 2, 8: 1}  # copies that rank 0 holds at most, for M = 24


def roots(leaves: Sequence[int], low: int, high: int) -> list[int]:
    """How many leaves each largest subtree has that is whole among these: by the definition of the tree."""
    if set(range(low, high)) <= set(leaves):
        return [high - low]
    if high - low == 1:
        return []
    middle = low + ceil((high - low) / 2)
    return roots(leaves, low, middle) + roots(leaves, middle, high)


def table_bytes(micro_batches: int) -> int:
    """Of what a rank tells every other one at the end of a step: two numbers per leaf, and a few."""
    return 8 * len(Told(used=[True]).numbers(micro_batches))


def sent_so_far() -> int:
    """Of all groups of this process: sums may be sent in one of their own."""
    return sum(group["counters"]["wire_bytes_sent"] for group in ringdp.stats()["groups"])


def counted(micro_batches: int, dtype: str) -> tuple[int, int, int]:
    """On a rank: bytes of one step that went to other ranks, bytes of the gradients, and of the sums held at most."""
    model = nn.Linear(64, HERE.size, bias=False).to(getattr(torch, dtype))  # shards without padding
    ddp = DistributedDataParallel(model, micro_batches=micro_batches)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    mine = allotment("buddy", micro_batches, HERE.size)[HERE.rank]
    held = 0
    for step in range(2):
        before = sent_so_far()
        for leaf in mine:
            with ringdp.leaf(step, leaf):
                ddp(torch.ones(1, 64).to(model.weight.dtype)).sum().backward()
            held = max(held, ddp.reducer.leaf_bytes())
        optimizer.step()
    return sent_so_far() - before, model.weight.nbytes, held


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    "ranks", [1, 2, 3, 4, *(pytest.param(n, marks=pytest.mark.long) for n in (5, 6, 7, 8, 12, 16))]
)
def test_bytes_are_those_of_the_formula(world_of, ranks, dtype):
    world = world_of(ranks, transport="tcp")
    for micro_batches in MICRO_BATCHES:
        found = world.run(counted, micro_batches, dtype)
        size = found[0][1]
        own = [roots(leaves, 0, micro_batches) for leaves in allotment("buddy", micro_batches, ranks)]
        wide = size if dtype == "float32" else 2 * size
        # A sum of several 16-bit leaves travels in float32. Each rank sends all shards but its own, of every root and
        # of the mean, and its row of the table to everybody.
        sums = [sum(size if leaves == 1 else wide for leaves in of_rank) for of_rank in own]
        formula = [(sent + size) * (ranks - 1) // ranks + table_bytes(micro_batches) * (ranks - 1) for sent in sums]
        assert [sent for sent, _, _ in found] == formula, (micro_batches, found)
        assert round(sum(map(len, own)) / ranks, 1) == SUMS[micro_batches][ranks]
        if micro_batches == 24 and dtype == "float32" and ranks in HELD:
            assert found[0][2] == HELD[ranks] * size
        check_planner(micro_batches, ranks, dtype, size, sums)


def check_planner(micro_batches: int, ranks: int, dtype: str, size: int, sums: Sequence[int]) -> None:
    """`ringdp plan elastic` predicts the same, on average over the ranks and without the table."""
    wire = {"float32": "fp32", "bfloat16": "bf16"}[dtype]
    asked = {"micro_batches": str(micro_batches), "ranks": str(ranks), "wire": wire}
    table, _ = ELASTIC.ask({**asked, "params": str(64 * ranks)}).tables
    assert table.rows[0][5] == pytest.approx((sum(sums) / ranks + size) * (ranks - 1) / ranks, rel=1e-12)
