"""ringdp/doctor/checks/failure.py: errors and standstills."""

from __future__ import annotations

import pytest
from ringdp.doctor.checks.failure import HANGS, check
from synthetic import STEPS, evidence


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


@pytest.mark.parametrize(("status", "said"), [(1, "ended with status 1"), (-9, "ended with signal 9")])
def test_a_job_that_died_without_a_word(status, said):
    (finding,) = check(evidence(status=status))
    assert finding.check == "failed" and said in finding.seen
    assert finding.numbers == {"status": status, "steps": STEPS}


def test_a_run_that_was_stopped_or_ended_is_fine():
    stopped = evidence(stopped="every rank has made its steps", status=-15)
    assert list(check(stopped)) == [] == list(check(evidence()))
