"""ringdp/doctor/checks/overlap.py: 0 % hidden."""

from __future__ import annotations

import pytest
from ringdp.doctor.checks.overlap import check, not_judged
from ringdp.doctor.evidence import Evidence
from synthetic import evidence

NONE = {"overlap": 0.0001}


BUCKETS = [(1, "all gradients are one bucket"), (3, "every bucket is launched after")]


@pytest.mark.parametrize(("buckets", "said"), BUCKETS)
def test_no_overlap_is_found(buckets, said):
    (finding,) = check(evidence(ddp=lambda rank, step: NONE, model={"buckets": buckets}))
    assert finding.numbers["overlap"] == pytest.approx(0.005 if buckets > 1 else 0.0)
    assert said in finding.seen and "ms of each step of 100.0 ms" in finding.seen


def test_some_overlap_is_fine():
    assert list(check(evidence())) == []
    assert list(check(evidence(ddp=lambda rank, step: {"overlap": 0.001}))) == []


def test_the_first_steps_do_not_count():
    assert list(check(evidence(ddp=lambda rank, step: NONE if step < 5 else {}))) == []


def test_what_takes_no_time_does_not_matter():
    short = {"communication": 0.004, "overlap": 0.0}
    assert list(check(evidence(ddp=lambda rank, step: short))) == []
    assert list(check(evidence(ddp=lambda rank, step: {"communication": 0.0, "overlap": 0.0}))) == []


def test_a_small_model_has_nothing_to_overlap():
    small = evidence(ddp=lambda rank, step: NONE, model={"bytes": 1 << 20, "buckets": 1})
    assert list(check(small)) == []
    assert "nothing to overlap with" in next(not_judged(small))


def test_without_a_wrapper_it_is_said():
    assert "no DistributedDataParallel made three steps" in next(not_judged(evidence(more=lambda rank: {"model": []})))
    early = evidence(ddp=lambda rank, step: {"step": min(step, 3)})
    assert list(not_judged(early)) == ["overlap: that takes 7 steps; give more --steps"]
    assert list(not_judged(evidence())) == [] and list(not_judged(Evidence({}))) == []


def test_one_bucket_hides_nothing_whatever_was_measured():
    (finding,) = check(evidence(model={"buckets": 1}))
    assert finding.numbers["overlap"] == 0 and finding.numbers["exposed_ms"] == pytest.approx(20)
