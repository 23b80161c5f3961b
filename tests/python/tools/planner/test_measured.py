"""Questions that are measured: on a perfect machine, what they refuse, the largest micro-batch against counting up."""

from __future__ import annotations

import invented
import pytest
from ringdp.tools.planner import measured
from ringdp.tools.planner.local_ranks import ProbeJob
from ringdp.tools.planner.measured import largest
from ringdp.tools.planner.prediction import calibrated
from ringdp.tools.planner.probe import counted
from ringdp.tools.planner.question import InputError
from ringdp.tools.planner.workload import mlp

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
