"""Thresholds from made-up times whose crossing is known."""

from __future__ import annotations

import pytest
from ringdp import _native
from ringdp.tools.tune.cache import FIELDS
from ringdp.tools.tune.microbenchmark import (
    Microbenchmark,
    at_the_edge,
    confidence,
    crossing_of,
    decide,
    fastest_of,
    microbenchmarks,
    spread,
)

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


def limits(*sizes):
    return Microbenchmark("one_shot_bytes_of_two", 2, ({}, {}), sizes)


def test_confidence_falls_with_rounds_that_disagree():
    clear = {size: [[1.0, 1.5] if size < 16384 else [1.5, 1.0]] * 20 for size in SIZES}
    noisy = {size: [[1.0, 1.5], [1.5, 1.0]] * 10 for size in SIZES}
    assert confidence(limits(*SIZES), clear) == 1 > confidence(limits(*SIZES), noisy)
    assert confidence(limits(*SIZES), {size: rows[:2] for size, rows in clear.items()}) == 0  # too few


def test_limits_at_an_edge_are_known():
    found = {value: at_the_edge(limits(*SIZES), value) for value in (SIZES[0] // 2, *SIZES)}
    assert [value for value, edge in found.items() if edge] == [SIZES[0] // 2, SIZES[-1]]
    waits = Microbenchmark("spin_us", 2, ({},) * 3, (4096,), crossing=False, values=(50, 10, 200))
    assert [value for value in waits.values if at_the_edge(waits, value)] == [10, 200]  # the default is none


def test_the_spread_is_that_of_most_rounds():
    assert spread({4096: [[1.0, 2.0]] * 9 + [[90.0, 90.0]]}) == 0
    assert spread({4096: [[1.0 + i % 2, 1.0 + i % 2] for i in range(10)]}) > 0.5
