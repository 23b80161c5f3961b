"""A perfect machine, calibrated on two ranks and one link, is predicted on others; a step played in time."""

from __future__ import annotations

import random

import invented
import pytest
from ringdp.tools.planner.local_ranks import ProbeJob
from ringdp.tools.planner.prediction import Bucket, calibrated, crowding, memory, play, predict


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


def measured(cores=64, between_hosts=True):
    reports = [invented.report(2, between_hosts)] * 2
    return calibrated(reports, ProbeJob("mlp", 8, 2, ()), cores, 100e6 if between_hosts else None)


@pytest.mark.parametrize("ranks", [2, 4, 8])
@pytest.mark.parametrize("rate", [50e6, 100e6, 800e6])
def test_other_ranks_and_links_of_a_perfect_machine(ranks, rate):
    expected = invented.report(ranks, rate=rate)["step"][0]
    assert predict(measured(), ranks, rate).step == pytest.approx(expected, rel=1e-6)


def test_what_the_parts_do_not_explain_is_kept_and_grows_with_the_crowd():
    slow = [{**invented.report(2), "step": [1.0, 1.0]}] * 2
    found = calibrated(slow, ProbeJob("mlp", 8, 2, ()), 2, 100e6)
    assert found.overhead == pytest.approx(1 - invented.report(2)["step"][0])
    assert predict(found, 2).step == pytest.approx(1.0)
    assert predict(found, 4).step > 2 * found.overhead


def test_ranks_beyond_the_cores_take_turns():
    assert [crowding(n, 2) for n in (1, 2, 3, 8)] == [1, 1, 1.5, 4]
    assert predict(measured(cores=2), 8).compute == pytest.approx(4 * predict(measured(cores=2), 2).compute)


def test_shared_memory_carries_all_ranks_tensors():
    found = measured(between_hosts=False)
    two, four = predict(found, 2), predict(found, 4)
    assert four.communication == pytest.approx(2 * two.communication)


def test_one_rank_communicates_nothing():
    alone = predict(measured(), 1)
    assert alone.communication == alone.exposed == 0 and alone.efficiency == pytest.approx(1, rel=1e-6)


def test_memory_is_formulas_and_what_lay_beside_the_model():
    found = measured()
    assert found.counted == sum(invented.HELD.values()) and found.other == 0
    assert predict(found, 8).memory == invented.report(2)["peak"]


@pytest.mark.parametrize("name", invented.HELD)
def test_a_wrong_formula_is_a_wrong_prediction(name):
    half = invented.HELD[name] // 2
    report = {**invented.report(2), "sizes": {**invented.SIZES, name: half}}
    found = calibrated([report] * 2, ProbeJob("mlp", 8, 2, ()), 2, 100e6)
    assert predict(found, 8).memory == report["peak"] - half and found.other == half


def test_stages_divide_what_they_divide():
    found = measured()
    bare = found.base + invented.HELD["saved"] + invented.HELD["batch"]
    assert memory(found, 4, 1) == bare + 4e6 + 4e6 + 8e6 / 4
    assert memory(found, 4, 2) == bare + 4e6 + (4e6 + 8e6) / 4 + sum(invented.BUCKETS)
    assert memory(found, 4, 3) == bare + 16e6 / 4 + 2 * 1e6


def test_efficiency_is_the_step_of_one_rank_over_the_step_of_many():
    for found in (measured(), measured(cores=2)):
        one = predict(found, 1).step
        assert predict(found, 8).efficiency == pytest.approx(one / predict(found, 8).step)
