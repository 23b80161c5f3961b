"""Spans against a count of single moments."""

from __future__ import annotations

import random

import pytest
from ringdp.observe.spans import covered, overlap, union


def moments(spans):
    return {t for begin, end in spans for t in range(begin, end)}


@pytest.mark.parametrize("seed", range(20))
def test_against_single_moments(seed):
    chance = random.Random(seed)

    def spans():
        return [(b, b + chance.randint(-2, 9)) for b in (chance.randint(0, 60) for _ in range(chance.randint(0, 12)))]

    one, other = spans(), spans()
    joined, second = union(one), union(other)
    assert moments(joined) == moments(one)
    assert all(a[1] < b[0] for a, b in zip(joined, joined[1:], strict=False))
    assert overlap(joined, second) == len(moments(one) & moments(other))
    for begin, end in other:
        assert covered(joined, begin, end) == len(moments(one) & moments([(begin, end)]))
