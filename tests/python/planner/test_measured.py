"""ringdp/planner/measured.py: the questions on a perfect machine, and what they refuse."""

import pytest

pytest.importorskip("torch")
import invented
from ringdp.planner import measured
from ringdp.planner.kind import InputError
from ringdp.planner.prediction import calibrated
from ringdp.planner.probe import counted
from ringdp.planner.probe_job import ProbeJob
from ringdp.planner.workload import mlp

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
    with pytest.raises(InputError, match="share memory; one of links .*planner.py --calibration"):
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
