"""Steps played in time, a perfect machine that is calibrated, predicted and checked, and calibrations in files."""

from __future__ import annotations

import json
import random
from dataclasses import asdict, replace

import invented
import pytest
from ringdp.tools.planner import measured
from ringdp.tools.planner.calibration import line_of, load, moved_bytes, slowest
from ringdp.tools.planner.local_ranks import ProbeJob
from ringdp.tools.planner.measured import largest
from ringdp.tools.planner.prediction import Bucket, calibrated, crowding, memory, play, predict
from ringdp.tools.planner.probe import counted
from ringdp.tools.planner.question import InputError
from ringdp.tools.planner.workload import mlp


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


def perfect_machine(cores=64, between_hosts=True):
    """As calibrated on two ranks."""
    reports = [invented.report(2, between_hosts)] * 2
    return calibrated(reports, ProbeJob("mlp", 8, 2, ()), cores, 100e6 if between_hosts else None)


@pytest.mark.parametrize("ranks", [2, 4, 8])
@pytest.mark.parametrize("rate", [50e6, 100e6, 800e6])
def test_other_ranks_and_links_of_a_perfect_machine(ranks, rate):
    expected = invented.report(ranks, rate=rate)["step"][0]
    assert predict(perfect_machine(), ranks, rate).step == pytest.approx(expected, rel=1e-6)


def test_what_the_parts_do_not_explain_is_kept_and_grows_with_the_crowd():
    slow = [{**invented.report(2), "step": [1.0, 1.0]}] * 2
    found = calibrated(slow, ProbeJob("mlp", 8, 2, ()), 2, 100e6)
    assert found.overhead == pytest.approx(1 - invented.report(2)["step"][0])
    assert predict(found, 2).step == pytest.approx(1.0)
    assert predict(found, 4).step > 2 * found.overhead


def test_ranks_beyond_the_cores_take_turns():
    assert [crowding(n, 2) for n in (1, 2, 3, 8)] == [1, 1, 1.5, 4]
    assert predict(perfect_machine(cores=2), 8).compute == pytest.approx(
        4 * predict(perfect_machine(cores=2), 2).compute
    )


def test_shared_memory_carries_all_ranks_tensors():
    found = perfect_machine(between_hosts=False)
    two, four = predict(found, 2), predict(found, 4)
    assert four.communication == pytest.approx(2 * two.communication)


def test_one_rank_communicates_nothing():
    alone = predict(perfect_machine(), 1)
    assert alone.communication == alone.exposed == 0 and alone.efficiency == pytest.approx(1, rel=1e-6)


def test_memory_is_formulas_and_what_lay_beside_the_model():
    found = perfect_machine()
    assert found.counted == sum(invented.HELD.values()) and found.other == 0
    assert predict(found, 8).memory == invented.report(2)["peak"]


@pytest.mark.parametrize("name", invented.HELD)
def test_a_wrong_formula_is_a_wrong_prediction(name):
    half = invented.HELD[name] // 2
    report = {**invented.report(2), "sizes": {**invented.SIZES, name: half}}
    found = calibrated([report] * 2, ProbeJob("mlp", 8, 2, ()), 2, 100e6)
    assert predict(found, 8).memory == report["peak"] - half and found.other == half


def test_stages_divide_what_they_divide():
    found = perfect_machine()
    bare = found.base + invented.HELD["saved"] + invented.HELD["batch"]
    assert memory(found, 4, 1) == bare + 4e6 + 4e6 + 8e6 / 4
    assert memory(found, 4, 2) == bare + 4e6 + (4e6 + 8e6) / 4 + sum(invented.BUCKETS)
    assert memory(found, 4, 3) == bare + 16e6 / 4 + 2 * 1e6


def test_efficiency_is_the_step_of_one_rank_over_the_step_of_many():
    for found in (perfect_machine(), perfect_machine(cores=2)):
        one = predict(found, 1).step
        assert predict(found, 8).efficiency == pytest.approx(one / predict(found, 8).step)


# A line through points, and a file that comes back.

CALIBRATION = calibrated([invented.report(2)] * 2, ProbeJob("mlp", 8, 2, ()), 2, 100e6)


def test_latency_and_bandwidth_are_found_again():
    assert CALIBRATION.alpha == pytest.approx(1e-3)
    assert CALIBRATION.seconds_per_byte == pytest.approx(1 / 100e6)
    assert line_of([(5.0, 3.0)]) == (3.0, 0.0)
    assert line_of([(1.0, 2.0), (2.0, 1.0)]) == (2.0, 0.0)  # noise must not make bytes pay


def test_bytes_that_count():
    assert moved_bytes(100, 4, between_hosts=True) == 150 and moved_bytes(100, 4, between_hosts=False) == 100


def test_the_slowest_rank_counts():
    assert slowest([{"step": [1, 2, 9]}, {"step": [3, 3, 3]}], "step") == 3


def test_a_file_comes_back(tmp_path):
    CALIBRATION.save(tmp_path / "here.json")
    assert load(tmp_path / "here.json") == CALIBRATION


def test_the_bucket_that_costs_least_on_what_was_measured():
    assert CALIBRATION.suggested_bucket_bytes == pytest.approx((invented.HELD["gradients"] * 100e6 * 1e-3) ** 0.5)
    free = replace(CALIBRATION, seconds_per_byte=0.0)
    assert free.suggested_bucket_bytes == invented.HELD["gradients"]


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"ranks": "2"}, "'ranks' is '2'"),
        ({"ranks": 0}, "'ranks' is 0"),
        ({"cores": True}, "'cores' is True"),
        ({"forward": float("nan")}, "'forward' is nan"),
        ({"base": 10**400}, "measure again"),
        ({"step": None}, "'step' is None"),
        ({"bandwidth": "1Gb/s"}, "'bandwidth' is '1Gb/s'"),
        ({"workload": 3}, "'workload' is 3"),
        ({"buckets": 5}, "'buckets' is 5"),
        ({"ready": ["a", 1]}, "'ready' is 'a'"),
        ({"ready": [1.0]}, "'buckets' are 2, 'ready' are 1"),
    ],
)
def test_a_value_that_was_never_measured_is_named(tmp_path, changed, named):
    path = tmp_path / "bad.json"
    path.write_text(json.dumps({**asdict(CALIBRATION), **changed}))
    with pytest.raises(InputError, match=named) as refusal:
        load(path)
    assert "\n" not in str(refusal.value) and str(refusal.value).count(str(path)) == 1


@pytest.mark.parametrize(("text", "named"), [("{", "Expecting"), ("{}", "measure again"), ("[1]", "measure again")])
def test_a_bad_file_is_named(tmp_path, text, named):
    path = tmp_path / "bad.json"
    path.write_text(text)
    with pytest.raises(InputError, match=named) as refusal:
        load(path)
    assert str(path) in str(refusal.value)


def test_files_that_are_not_there(tmp_path):
    with pytest.raises(InputError, match="make one by ringdp plan --calibrate"):
        load(tmp_path / "none.json")
    with pytest.raises(InputError, match="No such file"):
        CALIBRATION.save(tmp_path / "no" / "folder.json")


# Questions that are measured: on a perfect machine, what they refuse, the largest micro-batch against counting up.

CALIBRATE, PREDICT, CHECK, FIND = measured.KINDS


@pytest.fixture
def perfect(monkeypatch):
    """A machine of many cores whose ranks share memory; jobs that were run."""
    jobs = []

    def reports(job, ranks):
        jobs.append((job, ranks))
        rate = 100e6 * 2 / ranks  # all ranks' tensors through one memory
        alpha = 1e-3 * ranks / 2
        return [invented.report(ranks, False, rate, alpha)] * ranks

    monkeypatch.setattr(measured, "_reports", reports)
    monkeypatch.setattr(measured, "cores", lambda: 64)
    return jobs


def test_calibrate_then_predict_then_check(perfect, tmp_path):
    file = str(tmp_path / "here.json")
    answer = CALIBRATE.ask({"model": "mlp", "calibration": file})
    assert answer["alpha"] == pytest.approx(1e-3) and answer["samples_per_second"] == pytest.approx(8 / 0.03)
    assert all(figure.unit for figure in answer.figures if isinstance(figure.value, float) and figure.value < 1)
    predicted = PREDICT.ask({"calibration": file, "ranks": "2,4"})
    assert predicted["step_4"] == pytest.approx(invented.report(4, False, 50e6, 2e-3)["step"][0])
    checked = CHECK.ask({"model": "mlp", "ranks": "2,4", "calibration": file})
    for name in ("step_2", "step_4", "memory_2", "memory_4"):
        assert checked[f"{name}_ratio"] == pytest.approx(1)
    assert [ranks for _, ranks in perfect] == [2, 1, 2, 4]


def test_efficiency_is_measured_against_one_rank(perfect):
    checked = CHECK.ask({"model": "mlp", "ranks": "4"})
    one, four = (invented.report(n, False, 200e6 / n, 1e-3 * n / 2)["step"][0] for n in (1, 4))
    assert checked["efficiency_4"] == pytest.approx(one / four)
    (row,) = checked.tables[0].rows
    assert row[5] == checked["efficiency_4"]


def test_what_formulas_leave_unexplained_is_shown(perfect):
    answer = CALIBRATE.ask({"model": "mlp"})
    assert answer["counted"] == sum(invented.HELD.values())
    assert answer["other"] == answer["peak"] - answer["base"] - answer["counted"]
    assert answer["suggested_bucket_bytes"] == pytest.approx((invented.HELD["gradients"] * 100e6 * 1e-3) ** 0.5)


def test_a_calibration_of_links_is_predicted_on_others(tmp_path):
    file = tmp_path / "links.json"
    calibrated([invented.report(2)] * 2, ProbeJob("mlp", 8, 2, ()), 64, 100e6).save(file)
    for rate in (50e6, 800e6):
        answer = PREDICT.ask({"calibration": str(file), "ranks": "4", "bandwidth": f"{rate / 1e6:g}MB/s"})
        assert answer["step_4"] == pytest.approx(invented.report(4, rate=rate)["step"][0])
    assert answer.tables[1].rows[0][2] < answer["memory_4"]  # stage 1


def test_check_without_a_file_calibrates_first(perfect):
    CHECK.ask({"model": "mlp", "ranks": "4"})
    assert [(job.alone, ranks) for job, ranks in perfect] == [(True, 2), (False, 1), (False, 4)]


def test_a_calibration_of_something_else_is_refused(perfect, tmp_path):
    file = str(tmp_path / "here.json")
    CALIBRATE.ask({"model": "mlp", "calibration": file})
    with pytest.raises(InputError, match="is of --model mlp --micro-batch 8"):
        CHECK.ask({"model": "gpt", "calibration": file})
    with pytest.raises(InputError, match=r"share memory; one of links .*planner\.py --calibration"):
        PREDICT.ask({"calibration": file, "bandwidth": "1Gb/s"})


def test_one_rank_cannot_calibrate():
    with pytest.raises(InputError, match="at least 2 ranks"):
        CALIBRATE.ask({"ranks": "1"})


def test_an_unknown_model_is_refused_before_any_rank_starts(perfect):
    with pytest.raises(InputError, match="'gtp'"):
        CALIBRATE.ask({"model": "gtp"})
    assert not perfect


def test_the_largest_micro_batch_fits_and_the_next_does_not():
    found = FIND.ask({"model": "mlp", "device_gb": "0.1"})
    sizes = [counted(mlp(), found["micro_batch"] + more)["saved"] for more in (0, 1)]
    assert found["first_too_large"] == found["micro_batch"] + 1
    assert found["needed_bytes"] <= 0.1e9 < found["needed_bytes"] + 2 * (sizes[1] - sizes[0])


def test_not_even_one():
    found = FIND.ask({"model": "mlp", "device_gb": "0.001"})
    assert found["micro_batch"] == 0 and "not even one" in found.advice[0]


def test_a_measured_search_runs_ranks(perfect):
    found = FIND.ask({"model": "mlp", "device_gb": "1", "measured": "yes", "most": "4"})
    assert (found["micro_batch"], found["first_too_large"]) == (4, None)
    assert [job.micro_batch for job, _ in perfect] == [1, 2, 4]
    with pytest.raises(InputError, match="runs one rank at stage 0"):
        FIND.ask({"model": "mlp", "device_gb": "1", "measured": "yes", "stage": "2"})


@pytest.mark.parametrize("room", [*range(0, 40), 1000, 12345])
def test_the_largest_by_counting_up(room):
    def needed(samples):
        return 7 + 3 * samples

    expected = max((n for n in range(1, 5000) if needed(n) <= room), default=0)
    found = largest(needed, room, most=1 << 20)
    assert found.samples == expected and found.too_large == expected + 1
    assert found.needed == (needed(expected) if expected else 0)
    assert len(found.tried) <= 2 * (expected + 1).bit_length() + 1


@pytest.mark.parametrize("most", [1, 3, 64, 100])
def test_it_ends_where_everything_fits(most):
    found = largest(lambda samples: 0, 1, most)
    assert (found.samples, found.too_large) == (most, None)


@pytest.mark.parametrize("room", range(60, 110))
def test_nothing_beyond_the_most_is_tried_and_nothing_below_is_missed(room):
    found = largest(lambda samples: samples, room, most=100)
    assert found.samples == min(room, 100) and found.too_large == (room + 1 if room < 100 else None)
    assert max(samples for samples, _ in found.tried) <= 100
