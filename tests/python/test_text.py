"""Tables, styled lines and numbers with units."""

from __future__ import annotations

import importlib.util
import sys

import pytest
from ringdp.text import table
from ringdp.text.terminal import in_terminal, print_styled
from ringdp.text.units import agreeing, byte_size, counted, ms, names, plural, scaled, seconds

ROWS = [("[a]", "17"), ("longer", "3")]


def test_columns_are_aligned():
    assert table.columns([("a", "bcd"), ("efg", "h")]) == ["a    bcd", "efg  h"]
    assert table.columns([]) == []


@pytest.mark.parametrize("heads", [None, ("rank", "drawn [n]")])
@pytest.mark.parametrize("terminal", [False, True])
def test_every_cell_is_shown_as_it_is(terminal, heads, monkeypatch, capsys):
    if terminal:
        pytest.importorskip("rich")
    monkeypatch.setattr(table, "in_terminal", lambda: terminal)
    table.print_table("the [feed]", heads, ROWS)
    printed = capsys.readouterr().out
    for text in ("the [feed]", *(heads or ()), "[a]", "17", "longer", "3"):
        assert text in printed


def test_plain_rows_stand_below_their_title(capsys):
    table.print_table("title", ("x", "y"), ROWS)
    assert capsys.readouterr().out == "title\n  x       y\n  [a]     17\n  longer  3\n"


@pytest.mark.parametrize("heads", [None, ("x",)])
def test_a_table_of_no_rows_can_be_drawn(heads):
    pytest.importorskip("rich")
    assert table.rich_table("", heads, []).row_count == 0


# What standard output is, and styled lines in both forms.


@pytest.mark.parametrize(
    ("terminal", "rich", "expected"), [(True, True, True), (True, False, False), (False, True, False)]
)
def test_a_terminal_with_rich(terminal, rich, expected, monkeypatch):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: terminal, raising=False)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object() if rich else None)
    assert in_terminal() is expected


@pytest.mark.parametrize("terminal", [False, True])
def test_text_is_never_markup(terminal, monkeypatch, capsys):
    if terminal:
        pytest.importorskip("rich")
    monkeypatch.setattr("ringdp.text.terminal.in_terminal", lambda: terminal)
    print_styled(("[red]", "bold"), (" is [no] colour  ", ""))
    printed = capsys.readouterr().out
    assert "[red] is [no] colour" in printed and printed.endswith("\n")
    assert terminal or printed == "[red] is [no] colour\n"


def test_a_style_is_one_in_a_terminal(monkeypatch, capsys):
    pytest.importorskip("rich")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    print_styled(("loud", "bold"))
    assert capsys.readouterr().out == "\x1b[1mloud\x1b[0m\n"


# Numbers with units.


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
