"""Thresholds from made-up times whose crossing is known."""

from __future__ import annotations

import pytest
from ringdp import _native
from ringdp.tools.tune.cache import FIELDS
from ringdp.tools.tune.microbenchmark import crossing_of, decide, fastest_of, microbenchmarks

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
def test_every_field_of_these_ranks_has_its_benchmark(ranks):
    suffix = "of_more" if ranks == 2 else "of_two"
    found = microbenchmarks(ranks, DEFAULTS, spin=True)
    assert {benchmark.field for benchmark in found} == {field for field in FIELDS if not field.endswith(suffix)}
    assert {benchmark.field for benchmark in microbenchmarks(ranks, DEFAULTS, spin=False)} == {
        field for field in FIELDS if not field.endswith(suffix) and field != "spin_us"
    }
    for benchmark in found:
        assert benchmark.ranks == ranks
        assert len(benchmark.candidates) == (2 if benchmark.crossing else len(benchmark.values))
        times = {size: [[1.0] * len(benchmark.candidates)] for size in benchmark.sizes}
        if not benchmark.crossing:
            assert benchmark.values[0] == DEFAULTS[benchmark.field] == decide(benchmark, times)
        for options in benchmark.candidates:
            for field, value in options.items():
                _native.load().Options().set(field, str(value))
