"""ringdp/attach/show.py: tables and findings, plain and in a terminal."""

from __future__ import annotations

import pytest
from ringdp.attach import show
from ringdp.attach.finding import Finding

FINDING = Finding("duplicates", "[seen] twice", "counts twice", "shard it")


def test_columns_are_aligned():
    assert show.aligned([("a", "bcd"), ("efg", "h")]) == ["a    bcd", "efg  h"]


@pytest.mark.parametrize("terminal", [False, True])
def test_nothing_is_lost_in_either_form(terminal, monkeypatch, capsys):
    if terminal:
        pytest.importorskip("rich")
    monkeypatch.setattr(show, "_in_terminal", lambda: terminal)
    show.show_table(("rank", "drawn"), [("0", "17")], "the feed")
    show.show_findings([FINDING], ["loader 1: nobody knows"])
    printed = capsys.readouterr().out
    for text in ("the feed", "rank", "17", *str(FINDING).splitlines(), "not judged: loader 1: nobody knows"):
        assert text in printed
