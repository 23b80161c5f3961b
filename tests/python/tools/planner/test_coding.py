"""What codes save and cost, predicted for a perfect machine, and run on this one."""

from __future__ import annotations

from dataclasses import replace

import invented
import pytest
from ringdp.compress.methods import KINDS
from ringdp.tools.planner import coding, measured
from ringdp.tools.planner.coding import NAMES, Coding
from ringdp.tools.planner.local_ranks import ProbeJob
from ringdp.tools.planner.prediction import calibrated, predict
from ringdp.tools.planner.question import InputError

_, PREDICT, CHECK, _ = measured.KINDS


def test_the_codes_are_those_of_gradients():
    assert NAMES == KINDS


def perfect_machine(rate: float = 100e6):
    """As calibrated on two ranks with links."""
    return calibrated([invented.report(2, rate=rate)] * 2, ProbeJob("mlp", 8, 2, ()), 64, rate)


@pytest.mark.parametrize("share", [0.25, 0.03])
def test_codes_that_cost_nothing_are_a_faster_link_with_two_calls(share):
    expected = invented.report(4, rate=100e6 / share, alpha=2e-3)["step"][0]
    assert predict(perfect_machine(), 4, None, Coding("int8", 4, share, 0.0)).step == pytest.approx(expected, rel=1e-6)


def test_codes_take_turns_with_compute_and_with_other_ranks():
    link, cost = perfect_machine(), 2e-9
    quick, slow = (predict(link, 4, None, Coding("int8", 4, 0.25, seconds)) for seconds in (0.0, cost))
    elements = sum(invented.BUCKETS) / 4
    assert slow.communication == pytest.approx(quick.communication + cost * elements)
    assert slow.step > quick.step
    few = replace(link, cores=2)
    crowded = predict(few, 8, None, Coding("int8", 8, 0.25, cost)).communication
    assert crowded == pytest.approx(
        predict(few, 8, None, Coding("int8", 8, 0.25, 0.0)).communication + 4 * cost * elements
    )


@pytest.mark.parametrize("name", NAMES)
def test_codes_are_measured_here(name):
    found = coding.measured(name, 4)
    assert found.share == pytest.approx({"int8": 65 / 256, "fp8": 65 / 256, "sign": 17 / 512}[name], rel=1e-3)
    assert 0 < found.seconds < 1e-6
    assert coding.measured(name, 1).share == 1


def test_predict_says_which_pay(tmp_path, monkeypatch):
    monkeypatch.setattr(coding, "measured", lambda name, ranks: Coding(name, ranks, 0.25, 1e-8))
    file = str(tmp_path / "here.json")
    perfect_machine().save(tmp_path / "here.json")
    answer = PREDICT.ask({"calibration": file, "ranks": "1,4", "compress": "int8,fp8"})
    assert [row[:2] for row in answer.tables[2].rows] == [(4, "int8"), (4, "fp8")]  # one rank sends nothing
    assert answer["step_4_int8"] < answer["step_4"]
    fast = PREDICT.ask({"calibration": file, "ranks": "4", "compress": "int8", "bandwidth": "100GB/s"})
    assert fast["step_4_int8"] > fast["step_4"]
    with pytest.raises(InputError, match="int8, fp8, sign"):
        PREDICT.ask({"calibration": file, "compress": "int9"})


@pytest.mark.long
def test_check_puts_both_side_by_side():
    answer = CHECK.ask({"model": "mlp", "micro_batch": "2", "ranks": "2", "steps": "2", "compress": "int8"})
    ((ranks, name, predicted_share, share, predicted, took, ratio, *_),) = answer.tables[1].rows
    assert (ranks, name) == (2, "int8") and predicted_share == pytest.approx(share, rel=0.02)
    assert predicted > 0 and ratio == pytest.approx(took / predicted) == answer["step_2_int8_ratio"]
