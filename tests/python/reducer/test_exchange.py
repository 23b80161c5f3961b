"""Means by exchanged shards: lengths that do not divide, several in flight, memory left alone."""

from __future__ import annotations

import pytest
import torch
from ranks import HERE, group_of
from rig import _C, folded, gradients, same_bits


def in_flight(count: int, elements: int) -> bool:
    """On a rank: `count` means started before the first is waited for, finished in order."""
    mean = _C.Mean(group_of("gloo"), torch.device("cpu"))
    inputs = [[gradients(rank, [[elements + n]], seed=n)[0] for rank in range(HERE.size)] for n in range(count)]
    flats = [by_rank[HERE.rank].clone() for by_rank in inputs]
    started = [mean.start(flat, 3.0) for flat in flats]
    results = [reduction.finish() for reduction in started]
    in_place = all(r.data_ptr() == f.data_ptr() for r, f in zip(results, flats, strict=True))
    return in_place and all(same_bits(r, folded(i, 3.0)) for r, i in zip(results, inputs, strict=True))


@pytest.mark.parametrize("count", [1, 2, 5])
@pytest.mark.parametrize("elements", [1, 64])
def test_means_in_flight_keep_their_order_and_their_lengths(trio, count, elements):
    assert trio.run(in_flight, count, elements) == [True] * 3


def part_of_a_larger_tensor() -> bool:
    """On a rank: a view of 5 elements; its neighbours must not change."""
    whole = torch.arange(20.0)
    _C.Mean(group_of("gloo"), torch.device("cpu")).start(whole[7:12], 1.0).finish()
    expected = torch.arange(20.0)
    expected[7:12] *= 3
    return same_bits(whole, expected)


def test_padding_is_not_taken_from_the_neighbours(trio):
    assert trio.run(part_of_a_larger_tensor) == [True] * 3
