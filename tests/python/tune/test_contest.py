"""ringdp/tune/contest.py: thresholds from made-up times whose crossing is known."""

from __future__ import annotations

import pytest
from ringdp import _native
from ringdp.tune.cache import FIELDS
from ringdp.tune.contest import contests, crossing_of, decide, fastest_of

SIZES = [1 << i for i in range(12, 21)]
ROWS = {row["field"]: row for row in _native.load().setting_table()}
DEFAULTS = {field: int(ROWS[field]["default"]) for field in FIELDS}


@pytest.mark.parametrize("limit", [SIZES[0] // 2, *SIZES])
def test_the_crossing_is_found_wherever_it_is(limit):
    times = {size: [[1.0, 1.5] if size <= limit else [1.5, 1.0]] * 3 for size in SIZES}
    assert crossing_of(times) == limit


def test_one_odd_size_does_not_move_the_crossing():
    times = {size: [[1.0, 1.5] if size <= SIZES[5] else [1.5, 1.0]] for size in SIZES}
    times[SIZES[2]] = [[1.1, 1.0]]
    times[SIZES[7]] = [[1.0, 1.1]]
    assert crossing_of(times) == SIZES[5]


def test_a_round_that_was_disturbed_counts_once():
    times = {4096: [[1.0, 1.5], [1.0, 1.5], [90.0, 1.5]]}
    assert crossing_of(times) == 4096


def test_another_value_has_to_be_worth_it():
    values = (10, 20, 30)
    assert fastest_of({1: [[1.0, 0.99, 1.2]], 2: [[1.0, 0.99, 1.2]]}, values) == 10
    assert fastest_of({1: [[1.0, 0.80, 1.2]], 2: [[1.0, 0.80, 1.2]]}, values) == 20
    assert fastest_of({1: [[1.0, 0.80, 0.5]], 2: [[1.0, 1.90, 0.9]]}, values) == 30


@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_every_field_of_these_ranks_has_its_contest(ranks):
    suffix = "of_more" if ranks == 2 else "of_two"
    found = contests(ranks, DEFAULTS, spin=True)
    assert {contest.field for contest in found} == {field for field in FIELDS if not field.endswith(suffix)}
    assert {contest.field for contest in contests(ranks, DEFAULTS, spin=False)} == {
        field for field in FIELDS if not field.endswith(suffix) and field != "spin_us"
    }
    for contest in found:
        assert contest.ranks == ranks
        assert len(contest.candidates) == (2 if contest.crossing else len(contest.values))
        times = {size: [[1.0] * len(contest.candidates)] for size in contest.sizes}
        if not contest.crossing:
            assert contest.values[0] == DEFAULTS[contest.field] == decide(contest, times)
        for options in contest.candidates:
            for field, value in options.items():
                _native.load().Options().set(field, str(value))
