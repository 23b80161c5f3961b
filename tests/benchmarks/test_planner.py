"""benchmarks/planner.py from end to end on two hosts; its rows, and what it calls wrong."""

from __future__ import annotations

from dataclasses import replace

import invented
import pytest
from predictions import MEMORY_HEAD, case, link_bytes, predicted_steps, with_measured, with_peak
from programs import read, run
from ringdp.tools.planner.calibration import load
from ringdp.tools.planner.local_ranks import ProbeJob
from ringdp.tools.planner.prediction import calibrated
from runner.hosts import why_impossible

TINY = ("--ranks", 2, "--rates", 1, "--steps", 2, "--micro-batch", 8, "--seconds", 1, "--unseen", "mlp/2048/0")


@pytest.fixture
def perfect():
    """Two hosts without a fault on a link of 0.8 Gb/s, and more cores than ranks."""
    return calibrated([invented.report(2)] * 2, ProbeJob("mlp", 8, 2, ()), 64, link_bytes(0.8))


def test_a_perfect_machine_is_predicted(perfect):
    for row in predicted_steps(perfect, (2, 8), (0.8, 4.0)):
        report = invented.report(row.ranks, rate=link_bytes(row.gigabits))
        done = with_measured(row, [report] * row.ranks)
        assert done.step == pytest.approx(row.predicted_step) and not done.wrong
        assert f"{done.ranks} ranks at {row.gigabits:g} Gb/s" in row.prediction


@pytest.mark.parametrize(
    ("step", "memory", "named"),
    [(1.14, 1.02, []), (1.16, 1, ["step is 1.16"]), (0.84, 0.96, ["step is 0.84", "memory is 0.96"])],
)
def test_what_is_beyond_the_bars_is_wrong(perfect, step, memory, named):
    (row,) = predicted_steps(perfect, (4,), (0.8,))
    report = {"step": [step * row.predicted_step], "peak": memory * row.predicted_memory}
    wrong = with_measured(row, [report]).wrong
    assert len(wrong) == len(named) and all(part in said for part, said in zip(named, wrong, strict=True))


def test_memory_beyond_its_bar_is_wrong():
    row = case("gpt/8/1")
    near, far = (with_ratio(row, ratio) for ratio in (1.02, 0.96))
    assert len(str(near)) == len(MEMORY_HEAD)
    assert not near.wrong and "gpt, micro-batch 8, 2 ranks, stage 1: memory is 0.96" in far.wrong[0]


def with_ratio(row, ratio):
    """A case as measured on two ranks, so far from its prediction."""
    return with_peak(replace(row, ranks=2, predicted=100e6), [{"peak": 90e6}, {"peak": ratio * 100e6}])


@pytest.mark.long
def test_two_hosts(tmp_path):
    if reason := why_impossible():
        pytest.skip(reason)
    kept = ("--calibration", tmp_path / "links.json")
    said = run("planner.py", *TINY, "--json", tmp_path / "r.json", "--plot", tmp_path / "r.png", *kept)
    result = read(tmp_path / "r.json")
    (row,) = result["rows"]
    assert said.index("predicted: 2 ranks at 1 Gb/s") < said.index("measured")
    assert row["step"] > 0 and row["memory"] > row["predicted_memory"] / 2
    assert result["calibration"]["bandwidth"] == 125e6
    assert read(tmp_path / "links.json") == result["calibration"]
    assert load(tmp_path / "links.json").bandwidth == 125e6
    (other,) = result["memory_rows"]
    assert other["measured"] == pytest.approx(other["predicted"], rel=0.03)
    assert (tmp_path / "r.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("--ranks", "1,2"), "at least 2 each"),
        (("--rates", "1,fast"), "invalid list of float value: '1,fast'"),
        (("--micro-batch", 0), "--micro-batch is 0"),
        (("--unseen", "gpt/8"), "invalid list of case value: 'gpt/8'"),
    ],
)
def test_bad_input_is_refused(arguments, named):
    assert named in run("planner.py", *arguments, status=2)
