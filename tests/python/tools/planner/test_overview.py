"""The answers of its parts, and the stage that fits."""

import pytest
from ringdp.tools.planner.batch import KINDS as BATCH_KINDS
from ringdp.tools.planner.overview import KINDS
from ringdp.tools.planner.question import InputError
from ringdp.tools.planner.scaling import KINDS as STEP_KINDS

(OVERVIEW,) = KINDS
_, LR, _ = BATCH_KINDS


def test_sections_are_the_kinds_own_answers():
    answer = OVERVIEW.ask({"params": "70B"})
    sections = dict(answer.sections)
    given = {"params": "70B", "ranks": "256", "micro_batch": "1", "seq": "4096", "bandwidth": "400GB/s"}
    assert sections["How long is a step?"] == STEP_KINDS[0].ask({**given, "peak_tflops": "h100"})
    assert sections["Which batch?"]["samples"] == 256
    rows = sections["How efficient is it at this batch?"].tables[0].rows
    assert [row[0] for row in rows] == [64, 256, 1024]
    step = sections["How long is a step?"]
    assert rows[1][1:3] == (step["compute_seconds"], step["comm_seconds"])


def test_a_learning_rate_is_scaled_when_it_is_given():
    sections = dict(OVERVIEW.ask({"base_lr": "3e-4", "ranks": "8"}).sections)
    assert sections["Which learning rate?"] == LR.ask({"base_lr": "3e-4", "ranks": "8", "total_steps": "10K"})
    assert "Which learning rate?" not in dict(OVERVIEW.ask({}).sections)


@pytest.mark.parametrize("ranks", [14, 17, 18, 256])
@pytest.mark.parametrize("micro_batch", ["1", "8"])
def test_what_fits_and_what_is_held_agree(ranks, micro_batch):
    answer = OVERVIEW.ask({"ranks": str(ranks), "micro_batch": micro_batch})
    fits, held, *_ = (section for _, section in answer.sections)
    for stage in range(4):
        fewest = fits[f"stage{stage}_min_ranks"]
        assert (fewest is not None and fewest <= ranks) == (held[f"stage{stage}_total_bytes"] <= 80e9)


def test_the_advice_does_not_name_a_stage_that_does_not_fit():
    last = [OVERVIEW.ask(given).sections[-1][1].advice[0] for given in ({}, {"ranks": "2"}, {"params": "7B"})]
    assert "nothing below ZeRO-3 fits" in last[0] and "no ZeRO stage fits" in last[1] and "ZeRO-1 or ZeRO-2" in last[2]


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
