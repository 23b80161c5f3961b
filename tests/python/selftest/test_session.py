"""ringdp/selftest/session.py: every report arrives; who dies or hangs is named; nothing is left."""

from __future__ import annotations

import os
from pathlib import Path

import play_ranks
import pytest
from ringdp.selftest.cases import Case
from ringdp.selftest.rank import Assignment
from ringdp.selftest.session import Session
from ringdp.selftest.verdict import EXACT, WRONG

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
