"""A split batch: rows, outputs and gradients of the ranks against the whole."""

from __future__ import annotations

import pytest
import torch
from ringdp.examples import split_batch


def on_a_rank() -> dict:
    return split_batch.work()


@pytest.mark.parametrize(("ranks", "rows"), [(2, 2560), (4, 1280)])
def test_parts_are_the_whole_and_forward_sends_nothing(world_of, ranks, rows):
    for report in world_of(ranks).run(on_a_rank):
        assert report["rows_per_rank"] == rows
        assert report["concatenation_equals_whole"]
        assert report["bytes_moved_in_forward"] == 0
        assert report["gradient_gap"] <= 1e-6


def counted_around_a_sum() -> int:
    """On a rank: what the counter adds for 4 KiB."""
    before = split_batch.counted_bytes()
    torch.distributed.all_reduce(torch.ones(1024))
    return split_batch.counted_bytes() - before


def test_the_counter_sees_communication(world_of):
    assert all(moved >= 4096 for moved in world_of(2).run(counted_around_a_sum))


def test_products_are_exact_in_float32():
    rows = split_batch.whole_numbers(8, split_batch.INPUTS, 1)
    weights = split_batch.whole_numbers(split_batch.INPUTS, 3, 2)
    assert torch.equal(split_batch.multiply(rows, weights).double(), rows.double() @ weights.double())
    assert split_batch.INPUTS * split_batch.LARGEST**2 < 2**24


def test_uneven_parts_are_refused():
    assert split_batch.problem_of(2) is None and split_batch.problem_of(5) is None
    assert "5120 rows do not come out even on 3 ranks" in split_batch.problem_of(3)


def test_the_text_has_the_figures():
    report = {"ranks": 2, "rows": 5120, "rows_per_rank": 2560, "bytes_moved_in_forward": 0}
    text = split_batch.render({**report, "concatenation_equals_whole": False, "gradient_gap": 2e-9})
    assert "2560 of 5120" in text and "NO" in text and "2.0e-09" in text
