"""ringdp/selftest/tally.py: counts, cells and failures from events."""

from __future__ import annotations

import json

import pytest
from ringdp.selftest.cases import Case
from ringdp.selftest.session import Event
from ringdp.selftest.tally import Tally
from ringdp.selftest.verdict import EXACT, REFUSED, WRONG, Verdict

CASES = [Case("reduce", "int8", "SUM"), Case("reduce", "int8", "AVG"), Case("barrier")]
KINDS = [EXACT, REFUSED, EXACT]


@pytest.fixture
def tally():
    """All good, of two ranks over two transports, but for rank 1's word on barrier over tcp."""
    made = Tally(2, ["shm", "tcp"], CASES)
    for rank in range(2):
        for transport in made.transports:
            for number, kind in enumerate(KINDS):
                if (rank, transport, number) != (1, "tcp", 2):
                    made.add(Event(rank, transport, number, Verdict(kind)))
    return made


def test_good_only_when_all_ranks_have_spoken_of_all_cases(tally):
    assert not tally.good
    assert tally.counts() == {EXACT: 3, REFUSED: 2, "not run": 1}
    tally.add(Event(1, "tcp", 2, Verdict(EXACT)))
    assert tally.good
    assert tally.counts() == {EXACT: 4, REFUSED: 2}


def test_one_rank_s_failure_spoils_case_cell_and_all(tally):
    tally.add(Event(1, "tcp", 2, Verdict(WRONG, "element 3")))
    assert not tally.good
    assert tally.outcome("tcp", 2) == WRONG and tally.outcome("shm", 2) == EXACT
    assert tally.table() == (["", "i8", "-"], [["reduce", "✓", ""], ["barrier", "", "✗"]])
    assert [str(failure) for failure in tally.failures] == ["rank 1: tcp barrier: element 3"]


def test_equal_failures_of_several_ranks_are_one(tally):
    for rank in (1, 0):
        tally.add(Event(rank, "shm", 0, Verdict(WRONG, "element 3")))
    assert [str(failure) for failure in tally.failures] == ["ranks 0, 1: shm reduce int8 SUM: element 3"]


def test_a_rank_that_stopped_is_a_failure(tally):
    tally.add(Event(1, "tcp", 2, Verdict(EXACT)))
    tally.add(Event(1, "", None, Verdict(WRONG, "died")))
    assert not tally.good
    assert str(tally.failures[0]) == "rank 1: died"


def test_no_case_at_all_is_not_good():
    assert not Tally(2, ["shm"], []).good


def test_json_says_the_same(tally):
    tally.add(Event(1, "tcp", 2, Verdict(WRONG, "element 3")))
    report = json.loads(json.dumps(tally.report()))
    assert (report["exact"], report["refused"], report["wrong"], report["not_run"]) == (3, 2, 1, 0)
    assert report["failures"] == [{"ranks": [1], "transport": "tcp", "case": "barrier", "why": "element 3"}]
    assert {"transport": "shm", "op": "reduce", "dtype": "int8", "reduce": "AVG", "outcome": REFUSED} in report["cases"]
