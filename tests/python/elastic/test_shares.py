"""Shares of micro-batches by speed, against all that there are."""

from __future__ import annotations

import itertools

import pytest
from ringdp.elastic.shares import by_speed, improved, step_seconds


@pytest.mark.parametrize("seconds", [(1.0, 1.0, 1.0), (1.0, 2.0, 4.0), (0.3, 0.1, 0.25), (5.0, 0.01, 1.0)])
@pytest.mark.parametrize("leaves", [1, 3, 8])
def test_no_other_shares_end_sooner(leaves, seconds):
    shares = by_speed(leaves, seconds)
    assert sum(shares) == leaves
    others = [each for each in itertools.product(range(leaves + 1), repeat=3) if sum(each) == leaves]
    assert step_seconds(shares, seconds) == min(step_seconds(each, seconds) for each in others)


def test_equal_ranks_get_equal_shares_whatever_the_noise():
    assert by_speed(24, [0.1] * 4) == [6] * 4
    assert improved([6] * 4, [0.1, 0.101, 0.099, 0.1]) == [6] * 4


def test_shares_stay_unless_others_are_worth_it():
    assert improved([6] * 4, [0.1, 0.1, 0.1, 0.33]) == [8, 7, 7, 2]
    assert improved([8, 7, 7, 2], [0.1, 0.11, 0.1, 0.36]) == [8, 7, 7, 2]
    assert improved([8, 7, 7, 2], [0.1] * 4) == [6] * 4
    assert improved([6] * 4, [0.1, 0.1, 0.1, 0.0]) == [6] * 4  # not measured
