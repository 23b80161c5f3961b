"""ringdp/planner/overview.py: the answers of its parts, and the stage that fits."""

import pytest
from ringdp.planner.kind import InputError
from ringdp.planner.overview import KINDS
from ringdp.planner.step import KINDS as STEP_KINDS

(OVERVIEW,) = KINDS


def test_sections_are_the_kinds_own_answers():
    answer = OVERVIEW.ask({"params": "70B"})
    sections = dict(answer.sections)
    given = {"params": "70B", "ranks": "256", "micro_batch": "1", "seq": "4096", "bandwidth": "400GB/s"}
    assert sections["How long is a step?"] == STEP_KINDS[0].ask({**given, "peak_tflops": "h100"})
    assert sections["Which batch?"]["samples"] == 256


def test_what_is_assumed_is_said():
    assert "assumed --model llama-70b" in OVERVIEW.ask({}).advice[0]
    assert not any("assumed" in sentence for sentence in OVERVIEW.ask({"params": "7B"}).advice)


@pytest.mark.parametrize(("ranks", "stage"), [("256", 3), ("2", None)])
def test_the_smallest_stage_that_fits(ranks, stage):
    answer = OVERVIEW.ask({"params": "70B", "ranks": ranks})
    assert answer["smallest_stage_that_fits"] == stage
    if stage is not None:
        held = dict(answer.sections)["What does a rank hold?"]
        assert held[f"stage{stage}_bytes"] <= 80e9 < held[f"stage{stage - 1}_bytes"]


def test_a_model_brings_its_activations():
    held = dict(OVERVIEW.ask({"model": "gpt2", "ranks": "8"}).sections)["What does a rank hold?"]
    assert held["activation_bytes"] > 0 and held["stage3_transient_bytes"] > 0


def test_model_and_parameters_exclude_each_other():
    with pytest.raises(InputError, match="either --model or --params"):
        OVERVIEW.ask({"model": "gpt2", "params": "1B"})
