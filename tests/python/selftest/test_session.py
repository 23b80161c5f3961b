"""The ranks of a self-test: judged, and named when they are wrong, die or hang."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import play_ranks
import pytest
import torch
from ringdp.selftest.calls import RankContext
from ringdp.selftest.cases import OPS, Case
from ringdp.selftest.rank import EXACT, REFUSED, WRONG, Assignment, Verdict, judge, main
from ringdp.selftest.session import Session

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
