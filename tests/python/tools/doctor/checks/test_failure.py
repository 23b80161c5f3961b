"""Errors and standstills."""

from __future__ import annotations

import pytest
from ringdp.tools.doctor.checks.failure import HANGS, check
from ringdp.tools.doctor.evidence import Stand
from synthetic import STEPS, evidence


def error(kind, message, time, place="train.py, line 7 in main"):
    return {"error": [{"type": kind, "message": message, "time": time, "place": place}]}


def test_the_first_error_and_who_else():
    rows = error("DistBackendError", "Mismatch: rank 1 has 3 elements", 5.0, place="")
    (finding,) = check(evidence(3, more=lambda rank: rows if rank else {}))
    assert finding.check == "failed" and finding.ranks == (1, 2)
    assert "rank 1 ended with DistBackendError (rank 2 failed too): Mismatch" in finding.seen
    assert "buffers differ in size" in finding.fix


@pytest.mark.parametrize("lost", ["PeerLost: rank 1 has left", "[pair.cc:547] Connection closed by peer [::1]:5"])
def test_the_rank_that_raised_is_named_and_not_those_that_lost_it(lost):
    """Whatever the clocks of their hosts say."""
    rows = [error("DistBackendError", lost, 1.0), error("RuntimeError", "bad sample", 2.0), error("Late", "too", 3.0)]
    (finding,) = check(evidence(3, more=lambda rank: rows[rank]))
    where = "at train.py, line 7 in main (ranks 0, 2 failed too)"
    assert finding.seen == f"rank 1 ended with RuntimeError {where}: bad sample"
    assert finding.numbers == {"type": "RuntimeError", "rank": 1}
    assert "traceback" in finding.fix and "buffers" not in finding.fix


def test_where_ranks_stand():
    calls = {"call": [{"number": n, "op": "all_reduce", "group": "0,1", "count": 5 + n} for n in range(2)]}

    def more(rank):
        return {**calls, "back": [{"number": 0}] if rank else [{"number": 0}, {"number": 1}]}

    (finding,) = check(evidence(more=more, stopped=HANGS, stacks={1: Stand("train.py, line 3 in main")}))
    assert "rank 1: after 20 steps in all_reduce of 6 elements on ranks 0,1, at train.py, line 3" in finding.seen
    assert "rank 0: after 20 steps;" in finding.seen
    assert finding.ranks == () and "do not match" not in finding.why  # what rank 0 does is not known


def hung(**calls):
    """By rank, the call it waits in."""
    stacks = {rank: Stand(f"train.py, line {rank} in main", call) for rank, call in enumerate(calls.values())}
    idle = {rank: 15.2 + rank for rank in stacks}
    (finding,) = check(evidence(len(stacks), stopped=HANGS, stacks=stacks, idle=idle))
    return finding


def test_the_rank_that_has_not_called_is_named():
    finding = hung(zero="backward", one="")
    assert finding.ranks == (1,)
    assert finding.seen == (
        "rank 1 has not called for 16 s (after 20 steps, at train.py, line 1 in main); "
        "rank 0 waits for it (after 20 steps in backward, at train.py, line 0 in main)"
    )
    assert "look at what rank 1 does there" in finding.fix
    several = hung(zero="barrier", one="", two="")
    assert several.ranks == (1, 2) and several.seen.startswith("ranks 1, 2 have not called for 16 s (rank 1: after")


def test_calls_that_do_not_match_are_blamed_only_where_all_ranks_wait():
    assert "calls that do not match" in hung(zero="backward", one="barrier").why
    assert "waits for no other" in hung(zero="", one="").why


@pytest.mark.parametrize(("status", "said"), [(1, "ended with status 1"), (-9, "ended with signal 9")])
def test_a_job_that_died_without_a_word(status, said):
    (finding,) = check(evidence(status=status))
    assert finding.check == "failed" and said in finding.seen
    assert finding.numbers == {"status": status, "steps": STEPS}


def test_a_rank_that_died_without_a_word_comes_before_those_that_lost_it():
    lost = error("DistBackendError", "PeerLost: rank 1 (pid 7 on here) died: its process is gone", 1.0)
    (finding,) = check(evidence(more=lambda rank: {} if rank else lost, status=1, died=(1, "signal 9")))
    said = "rank 1 ended with signal 9 after 20 steps, without a word of an exception (rank 0 failed because of it)"
    assert finding.seen == said and finding.ranks == (1,)
    own = error("ValueError", "bad", 1.0)
    (finding,) = check(evidence(more=lambda rank: {} if rank else own, status=1, died=(1, "signal 15")))
    assert finding.seen.startswith("rank 0 ended with ValueError")


def test_a_stopped_process_has_not_called_whatever_it_was_in():
    calls = {"call": [{"number": 0, "op": "barrier", "group": "0,1", "count": 0}]}
    stacks = {0: Stand("train.py, line 3 in main", "barrier"), 1: Stand("", stopped=True)}
    (finding,) = check(evidence(more=lambda rank: calls, stopped=HANGS, stacks=stacks, idle={0: 5.0, 1: 6.0}))
    assert finding.ranks == (1,) and "its process is stopped by a signal" in finding.seen
    assert "rank 1 has not called for 6 s" in finding.seen


def test_a_run_that_was_stopped_or_ended_is_fine():
    stopped = evidence(stopped="every rank has made its steps", status=-15)
    assert list(check(stopped)) == [] == list(check(evidence()))
