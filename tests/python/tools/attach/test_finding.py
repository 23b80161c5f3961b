"""A finding as text and as JSON, plain and in a terminal."""

from __future__ import annotations

import json

import pytest
from ringdp.tools.attach import finding
from ringdp.tools.attach.finding import Finding, problems

PROBLEM = Finding("duplicates", "seen twice", "counts twice", "shard it", (0, 3), numbers={"repeated": 2})
NOTE = Finding("padding", "3 of 9", "weighs twice", "nothing", severity="note")


def test_text_says_what_why_and_what_to_do():
    assert str(PROBLEM).splitlines() == [
        "PROBLEM duplicates: seen twice",
        "  why it matters: counts twice",
        "  what to do: shard it",
    ]


def test_json_has_everything():
    stored = json.loads(json.dumps(PROBLEM.as_dict()))
    assert Finding(**{**stored, "ranks": tuple(stored["ranks"])}) == PROBLEM


def test_notes_are_no_problems():
    assert problems([NOTE, PROBLEM]) == [PROBLEM]


FINDING = Finding("duplicates", "[seen] twice", "counts twice", "shard it")


@pytest.mark.parametrize("terminal", [False, True])
def test_nothing_is_lost_in_either_form(terminal, monkeypatch, capsys):
    if terminal:
        pytest.importorskip("rich")
    monkeypatch.setattr("ringdp.text.terminal.in_terminal", lambda: terminal)
    finding.show_findings([FINDING], ["loader 1: not known"])
    printed = capsys.readouterr().out
    for text in (*str(FINDING).splitlines(), "not judged: loader 1: not known"):
        assert text in printed
