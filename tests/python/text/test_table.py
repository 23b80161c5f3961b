"""Tables lose nothing, drawn or plain."""

from __future__ import annotations

import pytest
from ringdp.text import table

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
