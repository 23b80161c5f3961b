"""ringdp/attach/finding.py: a finding as text and as JSON."""

from __future__ import annotations

import json

from ringdp.attach.finding import Finding, names, problems

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


def test_names_of_ranks():
    assert names([3]) == "rank 3"
    assert names({2, 1}) == "ranks 1, 2"
    assert names(range(20)) == "ranks 0, 1, 2, 3, 4, 5, 6, 7, ... (20 of them)"
