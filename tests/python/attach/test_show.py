"""ringdp/attach/show.py: findings, plain and in a terminal."""

from __future__ import annotations

import pytest
from ringdp.attach import show
from ringdp.attach.finding import Finding

FINDING = Finding("duplicates", "[seen] twice", "counts twice", "shard it")


@pytest.mark.parametrize("terminal", [False, True])
def test_nothing_is_lost_in_either_form(terminal, monkeypatch, capsys):
    if terminal:
        pytest.importorskip("rich")
    monkeypatch.setattr("ringdp.text.terminal.in_terminal", lambda: terminal)
    show.show_findings([FINDING], ["loader 1: nobody knows"])
    printed = capsys.readouterr().out
    for text in (*str(FINDING).splitlines(), "not judged: loader 1: nobody knows"):
        assert text in printed
