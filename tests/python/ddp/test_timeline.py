"""Overlap from timestamps: unions of intervals, what is exposed, what the sentence says."""

from __future__ import annotations

import pytest
from ringdp.ddp.timeline import BucketTimes, StepTimes, step_times, union


def times(backward: float, *buckets: tuple[float, float]) -> StepTimes:
    return StepTimes(1, 0.5, backward, 0.1, tuple(BucketTimes(begin, begin, end) for begin, end in buckets))


@pytest.mark.parametrize(
    ("intervals", "length"),
    [
        ([], 0),
        ([(1, 3)], 2),
        ([(1, 3), (2, 5)], 4),
        ([(4, 5), (1, 2)], 2),
        ([(1, 9), (2, 3)], 8),
        ([(3, 1)], 0),
        ([(1, 2), (3, 2.5), (2, 4)], 3),
    ],
)
def test_union_counts_each_moment_once(intervals, length):
    assert union(intervals) == pytest.approx(length)


@pytest.mark.parametrize(
    ("buckets", "communication", "exposed", "overlap"),
    [
        ([(1, 2), (3, 4)], 2, 0, 1),
        ([(1, 5), (4, 8)], 7, 3, 4 / 7),
        ([(5, 6), (6, 9)], 4, 4, 0),
        ([], 0, 0, 1),
    ],
)
def test_exposed_is_what_comes_after_the_last_gradient(buckets, communication, exposed, overlap):
    step = times(5, *buckets)
    assert step.communication == pytest.approx(communication)
    assert step.exposed == pytest.approx(exposed)
    assert step.overlap == pytest.approx(overlap)


def test_no_overlap_is_said_in_a_plain_sentence():
    assert times(5, (5, 6)).verdict.startswith("0 % of the communication was hidden")
    assert "57%" in str(times(5, (1, 5), (4, 8)))
    assert "bucket 1: ready 4000.00 ms" in str(times(5, (1, 5), (4, 8)))
    assert "No step" in times(5).verdict


def test_raw_nanoseconds_become_seconds_since_backward():
    raw = {"step": 3, "forward": 1_000, "backward": 2_000, "computed": 5_000, "finished": 6_000}
    step = step_times({**raw, "buckets": [(2_500, 2_600, 4_000), (0, 0, 0)]})
    assert (step.forward, step.backward, step.wait) == pytest.approx((1e-6, 3e-6, 1e-6))
    assert step.buckets == (BucketTimes(*(pytest.approx(t) for t in (5e-7, 6e-7, 2e-6))),)
