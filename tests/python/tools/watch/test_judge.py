"""What is concluded from reports that are made up: within how many steps, and what jitter is not taken for."""

from __future__ import annotations

import random
import re

import pytest
from ringdp import _native
from ringdp.tools.watch.figures import Row, packed
from ringdp.tools.watch.judge import Judge

_C = _native.load()
RANKS = (4, 5, 6)  # of the job: those of a group
STEP = 0.020
PERIOD = 8  # steps from one report to the next
WARM_UP = 5  # steps that are not judged
HEALTHY = 2000


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
                judge.add(rank, packed(pending[rank][-2 * PERIOD :]), latest)
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
        judge.add(0, packed([row(step)]), ())
        if step % 8:
            judge.note_delay(10 * step, 2, 0.004)
        said += judge.findings([0])
    assert [finding.ranks for finding in said] == [(6,)]


def test_steps_that_a_rank_leaves_out_are_not_judged():
    """Rank 2 looks at every eighth step only, and in those nobody is late."""
    judge, said = Judge(RANKS, str), []
    for step in range(1, 200):
        for rank in (0, 1, 2) if step % 8 == 0 else (0, 1):
            judge.add(rank, packed([late(by=0.005 if step % 8 else 0.0)(step, rank)]), ())
        said += judge.findings([0, 1, 2])
    assert said == []


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
        judge.add(0, packed([row(step)]), [(10 * step, 0, 1)])
        judge.note_delay(10 * step, 0, 0.001)
        judge.findings(range(3))
    assert 0 < len(judge._sums) <= 512


@pytest.mark.parametrize("wrong", [{"seconds": 0.0}, {"data": float("nan")}, {"compute": 1e300}, {"exposed": -1.0}])
def test_times_that_no_rank_measures_are_refused(wrong):
    judge = Judge(RANKS, str)
    with pytest.raises(ValueError, match="values that are not times of steps"):
        judge.add(1, packed([row(1), row(2)._replace(**wrong)]), ())
    with pytest.raises(ValueError, match="55 bytes are no rows"):
        judge.add(1, packed([row(1)])[:-1], ())
    judge.add(1, packed([row(1)]), ())


# Over steps that are made up: how soon a fault is named, and how long nothing is.


def heavy(choose, scale):
    """Seconds with a tail whose variance is infinite, and now and then a hiccup of several steps' length."""
    return scale * (choose.paretovariate(1.5) - 1) + (choose.random() < 0.01) * choose.uniform(0.01, 0.2)


def late_in(waits, judge=None, begin=WARM_UP + 1):
    """Ranks that were found, with the step (from 1) after which they were. waits: of the ranks in each step."""
    found = []
    for number, step in enumerate(waits, 1):
        judge = judge or _C.StepJudge(len(step))
        for rank, wait in enumerate(step):
            judge.add(rank, packed([Row(begin + number, begin + number, STEP, exposed=wait)]))
        found += [(number, late) for late, *_ in judge.judge(range(len(step))) if late is not None]
    return found, judge


def jitter(seed, ranks, scale, steps=HEALTHY):
    """What every rank waits in every step, where each is held up by chance."""
    choose = random.Random(seed)
    for _ in range(steps):
        came = [heavy(choose, scale) for _ in range(ranks)]
        yield [max(came) - at for at in came]


@pytest.mark.parametrize("scale", [0.0001, 0.001, 0.005, 0.020])
@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_heavy_tailed_jitter_is_nobodys_fault(ranks, scale):
    assert [found for seed in range(3) for found in late_in(jitter(seed, ranks, scale))[0]] == []


def test_nor_is_a_rank_that_is_late_by_a_coin_in_every_step():
    choose = random.Random(1)
    assert late_in([[0.01, 0.0] if choose.random() < 0.5 else [0.0, 0.01] for _ in range(4 * HEALTHY)])[0] == []


@pytest.mark.parametrize("scale", [0.0001, 0.001, 0.005])
@pytest.mark.parametrize("healthy", [0, 20, HEALTHY])
def test_a_straggler_is_found_within_36_steps_of_jitter(healthy, scale):
    for seed in range(4):
        judge = late_in(jitter(seed, 2, scale, healthy), _C.StepJudge(2))[1]
        waits = [[one + 0.010, other] for one, other in jitter(seed + 100, 2, scale / 5, 50)]
        waits = [[one - min(one, other), other - min(one, other)] for one, other in waits]
        (first, late), *_ = late_in(waits, judge, begin=WARM_UP + 1 + healthy)[0]
        assert first <= 36 and late == 1


@pytest.mark.parametrize(("quiet", "steps"), [(0, 24), (200, 14)])
def test_the_rarer_it_was_the_fewer_steps_are_enough(quiet, steps):
    (first, *_), _ = late_in([[0.0, 0.0]] * quiet + [[0.01, 0.0]] * 30)
    assert first == (quiet + steps, 1)


def test_what_costs_less_than_is_fair_is_not_said():
    assert late_in([[0.99 * 0.05 * STEP, 0.0]] * HEALTHY)[0] == []
    assert late_in([[1.01 * 0.05 * STEP, 0.0]] * HEALTHY)[0] != []


@pytest.mark.parametrize(("next_to_last", "is_found"), [(0.0005, False), (0.0015, True)])
def test_a_rank_that_comes_last_costs_what_the_next_one_waits(next_to_last, is_found):
    assert bool(late_in([[0.010, 0.0, next_to_last]] * 50)[0]) == is_found


def lost_in(shares):
    """The steps (from 1) after which overlap was missed. shares: exposed, of the rank that waits least."""
    judge, found = _C.StepJudge(2), []
    for number, share in enumerate(shares, 1):
        key = WARM_UP + number
        for rank in (0, 1):
            judge.add(rank, packed([Row(key, key, STEP, exposed=share * STEP, communication=2 * STEP)]))
        found += [number for late, *_ in judge.judge([0, 1]) if late is None]
    return found


def exposed(seed, usual, steps=HEALTHY):
    """Of the rank that waits least: the smaller one of two."""
    choose = random.Random(seed)
    return [min(usual + heavy(choose, usual), usual + heavy(choose, usual)) / STEP for _ in range(steps)]


@pytest.mark.parametrize("usual", [0.0, 0.0002, 0.002, 0.010])
def test_heavy_tailed_exposure_is_not_lost_overlap(usual):
    assert [found for seed in range(5) for found in lost_in(exposed(seed, usual))] == []


@pytest.mark.parametrize("usual", [0.0, 0.0002, 0.002])
@pytest.mark.parametrize("healthy", [10, 50, HEALTHY])
def test_lost_overlap_is_found_within_30_steps(healthy, usual):
    for seed in range(4):
        found = lost_in([*exposed(seed, usual, healthy), *exposed(seed, usual + 0.006, 100)])
        assert found and found[0] - healthy <= 30


def test_what_never_was_hidden_and_what_grows_slowly_is_not_lost():
    assert lost_in([0.4] * HEALTHY) == []
    assert lost_in([0.1 + 0.0001 * step for step in range(HEALTHY)]) == []
