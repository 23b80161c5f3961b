"""The results of a self-test, and how they are shown."""

from __future__ import annotations

import json

import pytest
from ringdp.selftest import display
from ringdp.selftest.cases import Case
from ringdp.selftest.rank import EXACT, REFUSED, WRONG, Verdict
from ringdp.selftest.results import Results
from ringdp.selftest.session import Event

CASES = [Case("reduce", "int8", "SUM"), Case("reduce", "int8", "AVG"), Case("barrier")]
KINDS = [EXACT, REFUSED, EXACT]


@pytest.fixture
def results():
    """All good, of two ranks over two transports, but for rank 1's word on barrier over tcp."""
    made = Results(2, ["shm", "tcp"], CASES)
    for rank in range(2):
        for transport in made.transports:
            for number, kind in enumerate(KINDS):
                if (rank, transport, number) != (1, "tcp", 2):
                    made.add(Event(rank, transport, number, Verdict(kind)))
    return made


def test_good_only_when_all_ranks_have_spoken_of_all_cases(results):
    assert not results.good
    assert results.counts() == {EXACT: 3, REFUSED: 2, "not run": 1}
    results.add(Event(1, "tcp", 2, Verdict(EXACT)))
    assert results.good
    assert results.counts() == {EXACT: 4, REFUSED: 2}


def test_one_rank_s_failure_spoils_case_cell_and_all(results):
    results.add(Event(1, "tcp", 2, Verdict(WRONG, "element 3")))
    assert not results.good
    assert results.outcome("tcp", 2) == WRONG and results.outcome("shm", 2) == EXACT
    assert results.table() == (["", "i8", "-"], [["reduce", "✓", ""], ["barrier", "", "✗"]])
    assert [str(failure) for failure in results.failures] == ["rank 1: tcp barrier: element 3"]


def test_equal_failures_of_several_ranks_are_one(results):
    for rank in (1, 0):
        results.add(Event(rank, "shm", 0, Verdict(WRONG, "element 3")))
    assert [str(failure) for failure in results.failures] == ["ranks 0, 1: shm reduce int8 SUM: element 3"]


def test_a_rank_that_stopped_is_a_failure(results):
    results.add(Event(1, "tcp", 2, Verdict(EXACT)))
    results.add(Event(1, "", None, Verdict(WRONG, "died")))
    assert not results.good
    assert str(results.failures[0]) == "rank 1: died"


def test_no_case_at_all_is_not_good():
    assert not Results(2, ["shm"], []).good


def test_json_says_the_same(results):
    results.add(Event(1, "tcp", 2, Verdict(WRONG, "element 3")))
    report = json.loads(json.dumps(results.report()))
    assert (report["exact"], report["refused"], report["wrong"], report["not_run"]) == (3, 2, 1, 0)
    assert report["failures"] == [{"ranks": [1], "transport": "tcp", "case": "barrier", "why": "element 3"}]
    assert {"transport": "shm", "op": "reduce", "dtype": "int8", "reduce": "AVG", "outcome": REFUSED} in report["cases"]


CASES_DISPLAY = [Case("reduce", "int8", "SUM"), Case("reduce", "int16", "SUM"), Case("barrier")]


@pytest.fixture
def shown_results():
    return Results(1, ["shm"], CASES_DISPLAY)


def shown(shown_results, chosen):
    with chosen:
        for number in range(len(CASES_DISPLAY)):
            event = Event(0, "shm", number, Verdict(EXACT))
            shown_results.add(event)
            chosen.show(event)


def test_plain_lines_name_each_op_once(shown_results, capsys):
    shown(shown_results, display.display_for(shown_results, quiet=False))
    assert [line.split() for line in capsys.readouterr().out.splitlines()] == [
        ["shm", "0/3", "reduce"],
        ["shm", "2/3", "barrier"],
    ]


def test_quiet_is_silent(shown_results, capsys):
    shown(shown_results, display.display_for(shown_results, quiet=True))
    assert capsys.readouterr().out == ""


def test_a_terminal_gets_a_table(shown_results, monkeypatch):
    pytest.importorskip("rich")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    chosen = display.display_for(shown_results, quiet=False)
    assert isinstance(chosen, display.Live)
    shown(shown_results, chosen)


def test_the_summary_ends_with_the_totals(shown_results):
    shown_results.add(Event(0, "shm", 0, Verdict(EXACT)))
    shown_results.add(Event(0, "shm", 2, Verdict(WRONG, "late")))
    lines = display.summary(shown_results, 1.25).splitlines()
    assert lines[0].split() == ["i8", "i16", "-"]
    assert lines[1].split() == ["reduce", "✓", "·"]
    assert "rank 0: shm barrier: late" in lines
    assert lines[-1] == "1 exact, 0 refused, 1 wrong, 1 not run: 1 rank over shm in 1.2 s"
