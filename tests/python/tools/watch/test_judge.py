"""What is concluded from reports that are made up: within how many steps, and what jitter is not taken for."""

from __future__ import annotations

import random
import re

import pytest
from ringdp.tools.watch.figures import Row
from ringdp.tools.watch.judge import WARM_UP, Judge

RANKS = (4, 5, 6)  # of the job: those of a group
STEP = 0.020
PERIOD = 8  # steps from one report to the next


def row(step, **figures):
    return Row(10 * step, step, STEP, **{"data": 0.001, "compute": 0.012, "communication": 0.006, **figures})


def played(rows_of, steps=50, sums_of=lambda step, rank: (), delay_of=None, reporting=range(3)):
    """Findings by the step after which they were said."""
    judge, found, pending = Judge(RANKS, lambda block: f"block {block}"), {}, {r: [] for r in reporting}
    sums = {rank: [] for rank in reporting}
    for step in range(1, steps + 1):
        for rank in reporting:
            pending[rank].append(rows_of(step, rank))
            sums[rank] += [(10 * step, number, value) for number, value in enumerate(sums_of(step, rank))]
        if delay_of is not None:
            judge.note_delay(10 * step, *delay_of(step))
        if step % PERIOD == 0:
            for rank in reporting:  # as in the store, the beginning is repeated
                latest = [at for at in sums[rank] if at[0] > 10 * (step - 2 * PERIOD)]
                judge.add(rank, pending[rank][-2 * PERIOD :], latest)
            if said := judge.findings(list(reporting)):
                found[step] = said
    return found, judge


def late(by=0.005, rank=1, **longer):
    """All others wait for this rank; it takes longer at `longer`."""

    def rows(step, own):
        return row(step, exposed=0.0005 + (0.0 if own == rank else by), **(longer if own == rank else {}))

    return rows


@pytest.mark.parametrize(
    ("longer", "where"),
    [
        ({"data": 0.006}, "; it takes 5 ms longer than they do between steps (loader, optimizer, logging)"),
        ({"compute": 0.017}, "; it takes 5 ms longer than they do in forward and backward"),
        ({}, ""),
    ],
)
def test_a_straggler_is_said_with_what_it_does_longer(longer, where):
    found, _ = played(late(**longer))
    (finding,) = found[32]
    assert list(found) == [32]  # of 24 steps after the first five
    assert (finding.check, finding.ranks) == ("straggler", (5,))
    assert finding.seen == f"up to step 29 rank 5 makes the others wait 5 ms of each step of 20 ms{where}"


def test_a_straggler_that_begins_anywhere_is_said_within_40_steps():
    for begin in range(WARM_UP, 60):
        found, _ = played(lambda step, rank, b=begin: (late() if step >= b else late(0.0))(step, rank), steps=120)
        assert min(found) - begin < 40


def test_a_straggler_that_stays_is_said_again():
    found, _ = played(late(), steps=60)
    assert list(found) == [32, 56]


def test_what_is_late_often_and_costs_little_is_not_said():
    found, _ = played(lambda step, rank: late(0.0011 if step % 4 else 0.0)(step, rank), steps=400)
    assert found == {}


def test_jitter_is_nobodys_fault():
    choose = random.Random(7)
    rows = [[row(step, exposed=choose.expovariate(1 / 0.005)) for _ in RANKS] for step in range(3001)]
    found, _ = played(lambda step, rank: rows[step][rank], steps=3000)
    assert [f for said in found.values() for f in said if f.check == "straggler"] == []


def test_delays_that_the_group_counts_are_believed_before_waits():
    found, _ = played(late(rank=0), delay_of=lambda step: (2, 0.004))
    assert {f.ranks for said in found.values() for f in said} == {(6,)}


def test_a_step_of_which_one_rank_says_nothing_yet_is_left_out():
    """Rank 0 alone reports, and its row may be read before the delays of its group are noted."""
    judge = Judge(RANKS, str)
    said = []
    for step in range(1, 50):
        judge.add(0, [row(step)], ())
        if step % 8:
            judge.note_delay(10 * step, 2, 0.004)
        said += judge.findings([0])
    assert [finding.ranks for finding in said] == [(6,)]


def test_overlap_that_was_there_is_missed():
    found, _ = played(lambda step, rank: row(step, exposed=0.0004 if step <= 16 else 0.0045), steps=96)
    (finding,) = found[40]
    assert finding.check == "overlap" and list(found) == [40, 64, 88]
    assert re.fullmatch(
        "up to step (39|40) every rank waits 4.5 ms of each step of 20 ms for communication that nothing hides, 4.. us "
        "before; 25% of it is hidden",
        finding.seen,
    )
    assert finding.numbers["before_s"] == pytest.approx(0.0004, rel=0.15)


@pytest.mark.parametrize(
    "exposed",
    [
        lambda step, rank: 0.0045,  # never hidden
        lambda step, rank: 0.0045 if step // 16 == 2 else 0.0004,  # for 16 steps
        lambda step, rank: 0.0004 if step <= 16 or rank == 1 else 0.0045,  # the others wait for rank 1
        lambda step, rank: 0.0004 if step <= 16 else 0.0009,  # less than is worth a word
    ],
)
def test_overlap_that_was_not_lost_is_not_missed(exposed):
    found, _ = played(lambda step, rank: row(step, exposed=exposed(step, rank)), steps=96)
    assert [f for said in found.values() for f in said if f.check == "overlap"] == []


def same(step, rank):
    return row(step)


def test_drift_names_the_rank_that_differs_and_the_first_step():
    found, judge = played(same, sums_of=lambda step, rank: (7, 8 + (rank == 2 and step >= 20)))
    (finding,) = found[24]
    assert (finding.check, finding.ranks, finding.numbers["step"]) == ("drift", (6,), 20)
    assert "at step 20 rank 6 holds other bits than most in block 1" in finding.seen
    assert judge.compared == 2 * 48


def test_drift_of_which_no_rank_is_right():
    found, _ = played(same, sums_of=lambda step, rank: (rank + 1,), steps=8)
    (finding,) = found[8]
    assert finding.ranks == RANKS and "ranks 4, 5, 6 hold different bits, and no value has a majority" in finding.seen


def test_ranks_that_take_fewer_blocks_or_steps_are_compared_in_those():
    def sums(step, rank):
        return (1, 2, 3 + (rank == 1))[: 1 + rank] if step % 2 or rank else ()

    found, judge = played(same, sums_of=sums, steps=16)
    assert found == {}
    assert judge.compared == 16 + 16  # the first block by two ranks at least, the second by ranks 1 and 2


def test_a_rank_that_does_not_report_is_left_out():
    found, _ = played(late(rank=0), reporting=(0, 1))
    assert {f.check for said in found.values() for f in said} == {"straggler"}
    assert all(f.ranks == (4,) for said in found.values() for f in said)


def test_nothing_grows_where_a_rank_falls_behind():
    judge = Judge(RANKS, lambda block: "")
    for step in range(1, 5000):
        judge.add(0, [row(step)], [(10 * step, 0, 1)])
        judge.note_delay(10 * step, 0, 0.001)
        judge.findings(range(3))
    assert max(map(len, (judge._rows, judge._sums, judge._lags))) <= 512
