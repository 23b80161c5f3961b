"""ringdp/selftest/rank.py: joins over every transport, judges, goes on after a refusal, stops with its group."""

from __future__ import annotations

import play_ranks
import pytest
from ringdp.selftest.cases import Case
from ringdp.selftest.rank import Assignment, main
from ringdp.selftest.session import Session
from ringdp.selftest.verdict import EXACT, REFUSED, WRONG

CASES = (
    Case("all_reduce", "bfloat16", "SUM"),
    Case("all_reduce", "int32", "PREMUL_SUM"),
    Case("broadcast", "int64"),
    Case("barrier"),
)


def judged(entry, cases=CASES, transports=("shm", "tcp"), **fields):
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
