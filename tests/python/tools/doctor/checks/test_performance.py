"""Communication of which 0 % is hidden; one slow rank, one slow link, and jitter that is neither."""

from __future__ import annotations

import pytest
from ringdp.tools.doctor.checks.performance import (
    check_overlap,
    check_stragglers,
    overlap_not_judged,
    stragglers_not_judged,
)
from ringdp.tools.doctor.evidence import Evidence
from synthetic import evidence

NONE = {"overlap": 0.0001}


BUCKETS = [(1, "all gradients are one bucket"), (3, "every bucket is launched after")]


@pytest.mark.parametrize(("buckets", "said"), BUCKETS)
def test_no_overlap_is_found(buckets, said):
    (finding,) = check_overlap(evidence(ddp=lambda rank, step: NONE, model={"buckets": buckets}))
    assert finding.numbers["overlap"] == pytest.approx(0.005 if buckets > 1 else 0.0)
    assert said in finding.seen and "ms of each step of 100.0 ms" in finding.seen


# By what they are; none of them has a finding.
HIDDEN = {
    "a clean run": evidence(),
    "some overlap": evidence(ddp=lambda rank, step: {"overlap": 0.001}),
    "none in the first steps": evidence(ddp=lambda rank, step: NONE if step < 5 else {}),
    "little to hide": evidence(ddp=lambda rank, step: {"communication": 0.004, "overlap": 0.0}),
    "nothing to hide": evidence(ddp=lambda rank, step: {"communication": 0.0, "overlap": 0.0}),
}


@pytest.mark.parametrize("run", HIDDEN.values(), ids=HIDDEN)
def test_enough_overlap_is_fine(run):
    assert list(check_overlap(run)) == []


def test_a_small_model_has_nothing_to_overlap():
    small = evidence(ddp=lambda rank, step: NONE, model={"bytes": 1 << 20, "buckets": 1})
    assert list(check_overlap(small)) == []
    assert "nothing to overlap with" in next(overlap_not_judged(small))


def test_without_a_wrapper_it_is_said():
    assert "no DistributedDataParallel made three steps" in next(
        overlap_not_judged(evidence(more=lambda rank: {"model": []}))
    )
    early = evidence(ddp=lambda rank, step: {"step": min(step, 3)})
    assert list(overlap_not_judged(early)) == ["overlap: that takes 7 steps; give more --steps"]
    assert list(overlap_not_judged(evidence())) == [] and list(overlap_not_judged(Evidence({}))) == []


def test_one_bucket_hides_nothing_whatever_was_measured():
    (finding,) = check_overlap(evidence(model={"buckets": 1}))
    assert finding.numbers["overlap"] == 0 and finding.numbers["exposed_ms"] == pytest.approx(20)


WAIT, NO_WAIT = {"communication": 0.06, "overlap": 0.0}, {"communication": 0.005, "overlap": 0.004}
PARTS = [
    ("in its data loader", {"data": 0.051}, {}),
    ("in the forward pass", {}, {"forward": 0.08}),
    ("in the backward pass", {}, {"backward": 0.10}),
    ("outside of forward, backward and loader", {}, {}),
]


def slow(rank, world, step=None, ddp=None):
    return evidence(
        world,
        step=lambda r, n: {"seconds": 0.15, **((step or {}) if r == rank else {})},
        ddp=lambda r, n: {**NO_WAIT, **(ddp or {})} if r == rank else WAIT,
    )


@pytest.mark.parametrize(("part", "step", "ddp"), PARTS)
@pytest.mark.parametrize(("rank", "world"), [(0, 2), (2, 4)])
def test_a_slow_rank_is_named_with_what_it_is_slow_in(part, step, ddp, rank, world):
    (finding,) = check_stragglers(slow(rank, world, step, ddp))
    assert (finding.check, finding.ranks, finding.numbers["where"]) == ("straggler", (rank,), part)
    assert finding.numbers["wait_ms"] == pytest.approx(59)


def test_with_several_micro_batches_half_in_the_last_one_is_half_of_the_cause():
    faulty = slow(1, 2, ddp={"backward": 0.08})
    assert list(check_stragglers(faulty)) == []  # 30 of 59 ms
    for records in faulty.ranks.values():
        for row in records.of("step"):
            row["backwards"] = 2
    (finding,) = check_stragglers(faulty)
    assert (finding.ranks, finding.numbers["where"]) == ((1,), "in its micro-batches")


def test_a_loader_with_two_workers_holds_up_every_second_step():
    def burst(rank, step):
        return {"seconds": 0.3 if step % 2 else 0.1, "data": 0.2 if rank and step % 2 else 0.001}

    faulty = evidence(step=burst, ddp=lambda rank, step: {**NO_WAIT, "communication": 0.2 * (not rank and step % 2)})
    (finding,) = check_stragglers(faulty)
    assert (finding.ranks, finding.numbers["where"]) == ((1,), "in its data loader")
    assert finding.numbers["wait_ms"] == pytest.approx(200 / 2, rel=0.1)


def test_ranks_that_wait_for_buffers_do_not_have_a_slow_forward_pass():
    def step(rank, _):
        return {"seconds": 0.15, "data": 0.06 * rank, "buffers": 0.06 * (1 - rank)}

    (finding,) = check_stragglers(
        evidence(step=step, ddp=lambda rank, _: {**NO_WAIT, "forward": 0.03 + 0.06 * (1 - rank)})
    )
    assert (finding.ranks, finding.numbers["where"]) == ((1,), "in its data loader")


EVEN = {
    "a rank on a busy machine is a little slower in everything": evidence(
        step=lambda rank, _: {"seconds": 0.15, "data": 0.02 * rank},
        ddp=lambda rank, _: {**(NO_WAIT if rank else WAIT), "backward": 0.05 + 0.02 * rank},
    ),
    "waits of a few time slices": evidence(
        step=lambda rank, _: {"seconds": 0.04, "data": 0.012 * rank, "called": 0.012 * (1 - rank)}
    ),
    "one long pause": evidence(ddp=lambda rank, n: {"communication": 9.0} if rank and n == 9 else NO_WAIT),
    "jitter that wanders": evidence(4, ddp=lambda rank, step: NO_WAIT if step % 4 == rank else WAIT),
    "small differences": evidence(ddp=lambda rank, step: {"overlap": 0.015 - 0.002 * rank}),
    "the latency of a small model": evidence(ddp=lambda rank, step: WAIT, model={"bytes": 20_000}),
    "no steps": evidence(more=lambda rank: {"step": []}),
    "a clean run": evidence(),
}


@pytest.mark.parametrize("run", EVEN.values(), ids=EVEN)
def test_neither_a_rank_nor_a_link_is_blamed_for(run):
    assert list(check_stragglers(run)) == []


def test_a_link_that_all_wait_for():
    (finding,) = check_stragglers(evidence(ddp=lambda rank, step: WAIT))
    assert finding.check == "link" and finding.ranks == ()
    assert finding.numbers["bytes_per_second"] == pytest.approx((8 << 20) / 0.06)


def test_waiting_in_calls_of_the_script_counts_too():
    by_hand = evidence(step=lambda r, n: {"called": 0.0 if r else 0.06}, more=lambda rank: {"ddp": [], "model": []})
    (finding,) = check_stragglers(by_hand)
    assert finding.ranks == (1,)


def test_too_few_steps_are_said_with_how_many_it_takes():
    short = evidence(step=lambda rank, step: {"step": min(step, 11)})
    assert list(check_stragglers(short)) == []
    assert list(stragglers_not_judged(short)) == ["stragglers and links: that takes 14 steps; give more --steps"]
    assert list(stragglers_not_judged(evidence())) == []
