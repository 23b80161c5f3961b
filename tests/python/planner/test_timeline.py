"""ringdp/planner/timeline.py: against small steps of time, and where the answer is known."""

import random

import pytest
from ringdp.planner.timeline import Bucket, play


def by_small_steps(backward, buckets, busy, tick=1e-3):
    """The same, a thousandth of a second at a time."""
    waiting = sorted(buckets, key=lambda bucket: bucket.ready)
    now = computed = left = 0.0
    while computed < backward:
        if left <= 0 and waiting and waiting[0].ready * backward <= computed:
            left = waiting.pop(0).seconds
        computed += tick * (1 - busy if left > 0 else 1)
        left -= tick if left > 0 else 0
        now += tick
    return now, max(0, left) + sum(bucket.seconds for bucket in waiting)


def test_against_small_steps_of_time():
    source = random.Random(3)
    for _ in range(30):
        buckets = [Bucket(source.random(), source.uniform(0.05, 2)) for _ in range(source.randrange(1, 6))]
        backward, busy = source.uniform(0.5, 4), source.choice([0, 0.3, 0.8])
        played = play(backward, buckets, busy)
        now, exposed = by_small_steps(backward, buckets, busy)
        assert played.backward == pytest.approx(now, abs=0.02)
        assert played.backward + played.exposed == pytest.approx(now + exposed, abs=0.02)


def test_the_last_bucket_is_exposed():
    assert play(1.0, [Bucket(1.0, 0.25)], 0.5).exposed == 0.25
    assert play(1.0, [Bucket(0.25, 0.5)], 0.0).exposed == 0


def test_without_buckets_nothing_happens_but_compute():
    assert play(1.5, [], 0.0).backward == 1.5
    assert play(0.0, [Bucket(0.5, 2.0)], 0.9).exposed == 2.0


def test_a_busy_core_computes_longer():
    assert play(1.0, [Bucket(0.0, 1.0)], 0.5).backward == pytest.approx(1.5)
