"""Numbers with units."""

from __future__ import annotations

import pytest
from ringdp.text.units import agreeing, byte_size, counted, ms, names, plural, scaled, seconds


def test_one_of_a_thing_is_not_several():
    assert [counted(number, "rank") for number in (0, 1, 2, 1234)] == ["0 ranks", "1 rank", "2 ranks", "1,234 ranks"]


def test_words_that_end_in_a_hiss_have_a_syllable_more():
    assert [plural(noun) for noun in ("step", "batch", "pass", "box")] == ["steps", "batches", "passes", "boxes"]


def test_names_of_ranks():
    assert names([3]) == "rank 3"
    assert names({2, 1}) == "ranks 1, 2"
    assert names(range(20)) == "ranks 0, 1, 2, 3, 4, 5, 6, 7, ... (20 of them)"


def test_words_agree_with_their_subjects():
    assert [agreeing(ranks, "has", "have") for ranks in ([3], [1, 2])] == ["has", "have"]


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0, "B", "0 B"),
        (12, "B", "12 B"),
        (999.0, "B", "999 B"),
        (1000, "B", "1.00 kB"),
        (279.7265625e9, "B", "279.73 GB"),
        (-2e6, "B", "-2.00 MB"),
        (4.4e17, "FLOP", "440.00 PFLOP"),
    ],
)
def test_prefixes(value, unit, text):
    assert scaled(value, unit) == text
    assert unit != "B" or byte_size(value) == text


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0.00 s"), (62.5e-6, "62.5 us"), (0.697, "697 ms"), (1, "1.00 s"), (3.4789, "3.48 s")]
)
def test_times(value, text):
    assert seconds(value) == text


def test_milliseconds_have_two_places_at_any_size():
    assert [ms(value) for value in (0, 1.5e-6, 1.2345)] == ["0.00 ms", "0.00 ms", "1234.50 ms"]
