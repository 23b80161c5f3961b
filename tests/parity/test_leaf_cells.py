"""micro_batches=M: a sample of all cells of leaf_cells.py, and what another order of the sum would give.

A failure prints its cell and the seed; `python tests/parity/leaf_cells.py --seed N --cells 600` repeats the sample.
"""

from __future__ import annotations

import time

import pytest
from leaf_cells import AXES, in_one_process, in_rank_order, sample, tally

pytestmark = pytest.mark.usefixtures("one_thread")
SEED, CELLS, PARTS, SLICE = 1, 600, 4, 10
# Worlds that other tests of this folder use as well, and not the models whose leaves take long.
QUICK = {"ranks": (2, 3, 4), "model": tuple(name for name in AXES["model"] if name != "wide")}


def check(world_of, cells, limit_s) -> None:
    """AssertionError with all that was wrong."""
    count, wrong = tally(world_of, cells, time.monotonic() + limit_s, lambda line: None)
    assert not wrong, "\n\n".join([f"seed {SEED}", *wrong])
    assert count == len(cells)


def test_a_slice_ends_as_one_process(world_of):
    check(world_of, sample(SLICE, SEED, **QUICK), 600)


@pytest.mark.long
@pytest.mark.parametrize("part", range(PARTS))
def test_cells_end_as_one_process(world_of, part):
    check(world_of, sample(CELLS, SEED)[part::PARTS], 1800)


def test_the_sample_has_every_value():
    cells = sample(CELLS, SEED)
    assert len(set(cells)) == CELLS
    for name, values in AXES.items():
        assert {getattr(cell, name) for cell in cells} == set(values)


@pytest.mark.parametrize(("ranks", "micro_batches"), [(3, 8), (4, 8), (3, 24)])
def test_the_rank_order_has_other_bits(world_of, ranks, micro_batches):
    """The control: with several leaves on each of at least three ranks, equality says something about the order."""
    for model in ("plain", "mlp"):
        tree = in_one_process(model, micro_batches, "float32")
        order = world_of(ranks).run(in_rank_order, model, micro_batches)
        assert order == [order[0]] * ranks and order[0] != tree


def test_up_to_three_leaves_both_orders_are_one(world_of):
    """So the control differs from the tree in the order alone."""
    assert world_of(3).run(in_rank_order, "plain", 3) == [in_one_process("plain", 3, "float32")] * 3
