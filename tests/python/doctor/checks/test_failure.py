"""ringdp/doctor/checks/failure.py: errors and standstills."""

from __future__ import annotations

from ringdp.doctor.checks.failure import HANGS, check
from synthetic import evidence


def test_the_first_error_and_who_else():
    rows = {"error": [{"type": "DistBackendError", "message": "Mismatch: rank 1 has 3 elements"}]}
    (finding,) = check(evidence(3, more=lambda rank: rows if rank else {}))
    assert finding.check == "failed" and finding.ranks == (1, 2)
    assert "rank 1 ended with DistBackendError (rank 2 failed too): Mismatch" in finding.seen


def test_where_ranks_stand():
    calls = {"call": [{"number": n, "op": "all_reduce", "group": "0,1", "count": 5 + n} for n in range(2)]}

    def more(rank):
        return {**calls, "back": [{"number": 0}] if rank else [{"number": 0}, {"number": 1}]}

    (finding,) = check(evidence(more=more, stopped=HANGS, stacks={1: "train.py, line 3, in main"}))
    assert "rank 1: after 20 steps in all_reduce of 6 elements on ranks 0,1, at train.py, line 3" in finding.seen
    assert "rank 0: after 20 steps;" in finding.seen


def test_a_run_that_was_stopped_or_ended_is_fine():
    assert list(check(evidence(stopped="every rank has made its steps"))) == [] == list(check(evidence()))
