"""The ranks of a self-test, named when they are wrong, die or hang, and the results as they are shown."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path

import play_ranks
import pytest
import torch
from ringdp.selftest import display
from ringdp.selftest.calls import RankContext
from ringdp.selftest.cases import OPS, Case
from ringdp.selftest.rank import EXACT, REFUSED, WRONG, Assignment, Verdict, judge, main
from ringdp.selftest.results import Results
from ringdp.selftest.session import Event, Session

CASES = (Case("all_reduce", "int32", "SUM"), Case("barrier"))
ASSIGNMENT = Assignment(3, ("shm",), CASES, "", 10.0)
STALL_S = 1.0


@pytest.fixture
def observed(tmp_path, monkeypatch):
    """observed(entry): the events; afterwards no process and no file is left."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    def run(entry, assignment=ASSIGNMENT):
        with Session(assignment, STALL_S, entry) as session:
            assert list(tmp_path.glob("ringdp-selftest-*"))
            events = list(session.events())
            pids = session.pids
        assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]
        assert not list(tmp_path.glob("ringdp-selftest-*"))
        return events

    return run


def test_every_report_arrives(observed):
    events = observed(play_ranks.good)
    assert {(event.rank, event.case) for event in events} == {(rank, case) for rank in range(3) for case in range(2)}
    assert {event.verdict.kind for event in events} == {EXACT}


def test_a_dead_rank_is_named_with_status_and_place(observed):
    last = next(event for event in observed(play_ranks.rank_1_dies) if event.case is None)
    assert (last.rank, last.verdict.kind) == (1, WRONG)
    assert last.verdict.why == "died with status 7; the last it reported is shm: all_reduce int32 SUM"


def test_a_hanging_rank_is_named_and_killed(observed):
    last = next(event for event in observed(play_ranks.rank_1_hangs) if event.case is None)
    assert last.rank == 1
    assert "hangs: killed after 1 s" in last.verdict.why and "never got to its first case" in last.verdict.why


def test_leaving_early_ends_the_ranks():
    with Session(ASSIGNMENT, STALL_S, play_ranks.rank_1_hangs) as session:
        pids = session.pids
        os.kill(pids[1], 0)
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]


CASES_RANK = (
    Case("all_reduce", "bfloat16", "SUM"),
    Case("all_reduce", "int32", "PREMUL_SUM"),
    Case("broadcast", "int64"),
    Case("barrier"),
)


def judged(entry, cases=CASES_RANK, transports=("shm", "tcp"), **fields):
    with Session(Assignment(2, transports, cases, "", 20.0, **fields), 60.0, entry) as session:
        return list(session.events())


@pytest.mark.parametrize("rank", [0, 1])
def test_every_case_over_every_transport(rank):
    events = [event for event in judged(main) if event.rank == rank]
    assert [(e.transport, e.case, e.verdict.kind) for e in events] == [
        (transport, number, kind)
        for transport in ("shm", "tcp")
        for number, kind in enumerate((EXACT, REFUSED, EXACT, EXACT))
    ]


def test_a_wrong_oracle_is_noticed():
    wrong = [event for event in judged(play_ranks.with_a_wrong_oracle) if event.verdict.kind == WRONG]
    assert {(event.rank, event.transport, event.case) for event in wrong} == {
        (rank, transport, 0) for rank in (0, 1) for transport in ("shm", "tcp")
    }
    assert all("element 4 of 5: expected" in event.verdict.why for event in wrong)


def test_a_group_that_cannot_be_made_is_a_report_of_the_rank():
    events = judged(main, transports=("pigeon",))
    assert [(event.rank, event.case) for event in sorted(events, key=lambda e: e.rank)] == [(0, None), (1, None)]
    assert all("pigeon" in event.verdict.why for event in events)


ALONE = RankContext(0, 1)
SUM = Case("all_reduce", "int32", "SUM")
PREMUL_SUM = Case("all_reduce", "int32", "PREMUL_SUM")


@pytest.fixture
def play(monkeypatch):
    """play(call): all_reduce is this generator."""

    def replace(call):
        monkeypatch.setitem(OPS, "all_reduce", dataclasses.replace(OPS["all_reduce"], call=call))

    return replace


def test_equal_results_are_exact(play):
    counts = []

    def call(context, dtype, reduce, count):
        counts.append(count)
        yield "result", torch.ones(count, dtype=dtype), torch.ones(count, dtype=dtype)

    play(call)
    assert judge(ALONE, SUM) == Verdict(EXACT)
    assert 0 in counts and len(counts) > 2


def test_a_wrong_result_is_described_and_the_calls_go_on(play):
    counts = []

    def call(context, dtype, reduce, count):
        counts.append(count)
        yield "result", torch.ones(count, dtype=dtype), torch.zeros(count, dtype=dtype)

    play(call)
    judged = judge(ALONE, SUM)
    assert judged.kind == WRONG and not judged.raised
    assert judged.why.startswith("result of 5 elements: element 0 of 5: expected 0, got 1")
    assert max(counts) > 5


def test_an_error_is_a_wrong_result_of_its_own_kind(play):
    def call(*_):
        raise RuntimeError("PeerLost: rank 1\nC++ stack")
        yield

    play(call)
    assert judge(ALONE, SUM) == Verdict(WRONG, "RuntimeError: PeerLost: rank 1", raised=True)


@pytest.mark.parametrize(
    ("message", "kind"), [("PREMUL_SUM of whole numbers", "refused"), ("no", "wrong"), (None, "wrong")]
)
def test_what_has_no_meaning_must_be_refused_by_name(play, message, kind):
    def call(context, dtype, reduce, count):
        if message:
            raise ValueError(message)
        yield "result", torch.ones(1), torch.ones(1)

    play(call)
    assert judge(ALONE, PREMUL_SUM).kind == kind


# The results of a self-test, and how they are shown.

RESULT_CASES = [Case("reduce", "int8", "SUM"), Case("reduce", "int8", "AVG"), Case("barrier")]
KINDS = [EXACT, REFUSED, EXACT]


@pytest.fixture
def results():
    """All good, of two ranks over two transports, but for rank 1's word on barrier over tcp."""
    made = Results(2, ["shm", "tcp"], RESULT_CASES)
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
