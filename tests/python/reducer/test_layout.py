"""Sizes to buckets: every parameter once, full buckets, limits by number, launch order."""

from __future__ import annotations

import random

import pytest
from ringdp import _native

make_layout = _native.load().make_layout


def random_parts(seed: int) -> list[tuple[int, int, bool]]:
    source = random.Random(seed)
    return [(source.randrange(0, 5000), source.randrange(3), source.random() < 0.1) for _ in range(60)]


@pytest.mark.parametrize("seed", range(8))
def test_every_parameter_is_in_one_bucket_of_its_kind(seed):
    parts = random_parts(seed)
    order = random.Random(seed).sample(range(len(parts)), len(parts))
    layout = make_layout(parts, order, [1000, 8000])
    assert sorted(index for bucket in layout for index in bucket) == list(range(len(parts)))
    for bucket in layout:
        assert len({parts[index][1] for index in bucket}) == 1
        assert len(bucket) == 1 or not any(parts[index][2] for index in bucket)
        positions = [order.index(index) for index in bucket]
        assert positions == sorted(positions)


@pytest.mark.parametrize("seed", range(8))
def test_buckets_stand_in_the_order_in_which_they_are_complete(seed):
    parts = random_parts(seed)
    order = list(range(len(parts)))[::-1]
    ends = [max(order.index(index) for index in bucket) for bucket in make_layout(parts, order, [3000])]
    assert ends == sorted(ends)


@pytest.mark.parametrize("limit", [0, 1, 700, 6000, 10**9])
@pytest.mark.parametrize("seed", range(4))
def test_gradients_that_share_a_bucket_may_have_to_stay_within_its_limit(seed, limit):
    parts = random_parts(seed)
    layout = make_layout(parts, range(len(parts)), [limit], hard_limits=True)
    assert sorted(index for bucket in layout for index in bucket) == list(range(len(parts)))
    assert all(len(bucket) == 1 or sum(parts[index][0] for index in bucket) <= limit for bucket in layout)
    open_at: dict[int, tuple[int, int]] = {}  # kind -> bucket, bytes; greedy: what fits goes in
    number_of = {index: number for number, bucket in enumerate(layout) for index in bucket}
    for index, (size, kind, own_bucket) in enumerate(parts):
        number, filled = open_at.get(kind, (-1, limit))
        if not own_bucket and size < limit and filled < limit and filled + size <= limit:
            assert number_of[index] == number
        if not own_bucket and size < limit:
            open_at[kind] = (number_of[index], filled + size if number_of[index] == number else size)


@pytest.mark.parametrize("limit", [0, 1, 130, 700, 10**9])
def test_a_bucket_is_full_when_it_reaches_its_limit_and_not_before(limit):
    parts = [(size, 0, False) for size in (100, 900, 50, 3000, 10, 10, 100, 2500, 1)]
    layout = [[parts[index][0] for index in bucket] for bucket in make_layout(parts, range(len(parts)), [limit])]
    for sizes in layout:
        assert sum(sizes[:-1]) < limit or len(sizes) == 1
        # A gradient that fills a bucket has it for itself.
        assert len(sizes) == 1 or max(sizes) < limit
    assert sum(sum(sizes) < limit for sizes in layout) <= 1


def test_limits_go_by_the_number_of_the_bucket():
    parts = [(10, 0, False)] * 12
    assert [len(bucket) for bucket in make_layout(parts, range(12), [10, 20, 40])] == [1, 2, 4, 4, 1]
    assert make_layout([(5, 0, False), (50, 0, False), (5, 0, False)], range(3), [9, 10]) == [[1], [0, 2]]


def test_the_number_of_buckets_is_about_bytes_over_limit():
    parts = [(4 * 1024, 0, False)] * 1000
    limit = 100 * 1024
    assert len(make_layout(parts, range(1000), [limit])) == 1000 * 4 * 1024 // limit


def test_equal_arguments_give_equal_layouts_and_no_parameters_none():
    parts = random_parts(3)
    assert make_layout(parts, range(60), [99]) == make_layout(parts, range(60), [99])
    assert make_layout([], [], [1]) == []
