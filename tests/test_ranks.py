"""on_ranks(): a test fails where one rank returns something else, raises, does not raise what it must, or is stuck."""

from __future__ import annotations

import time

import pytest
from ranks import HERE, on_ranks


def rank_0_is_odd(value: int) -> int:
    if value < 0 and HERE.rank == 0:
        raise ValueError("below 0")
    return value + (HERE.rank == 0)


@pytest.mark.parametrize(
    ("value", "must", "told"),
    [
        (1, {"gives": 1}, r"by rank \[2, 1\], must be 1 on each"),
        (-1, {"gives": -1}, "rank 0: .*ValueError: below 0"),
        (-1, {"error": "below 0"}, "the errors of the ranks: .'ValueError: below 0', ''"),
        (1, {"error": ("ValueError", "below 0")}, "the errors of the ranks: .'', ''"),
    ],
)
def test_one_rank_is_enough_to_fail(world_of, value, must, told):
    with pytest.raises(AssertionError, match=f"(?s){told}"):
        on_ranks(2, **must)(rank_0_is_odd)(world_of, value=value)


def sleep_on_rank_1() -> None:
    if HERE.rank == 1:
        time.sleep(3600)


def test_a_rank_that_is_stuck_says_where(run_on_fresh_ranks):
    with pytest.raises(TimeoutError, match=r"(?s)rank 1 is not done after 2 s; .*rank 1: .* in sleep_on_rank_1"):
        run_on_fresh_ranks(2).attempt(sleep_on_rank_1, within=2)


@pytest.mark.parametrize("value", [2, 3])
@on_ranks(2, True)
def test_values_of_a_table_reach_every_rank(value: int) -> bool:
    return value in (2, 3) and HERE.size == 2
