"""Steps, walls and regimes, which agree with each other, and the overview of all answers."""

from __future__ import annotations

import pytest
from ringdp.tools.planner import batch, overview
from ringdp.tools.planner.question import InputError
from ringdp.tools.planner.scaling import KINDS, REGIMES

STEP, WALL, BREAK_EVEN, EFFICIENCY, REGIME = KINDS
COMMON = {"params": "70B", "ranks": "2048", "seq": "4096", "bandwidth": "400GB/s", "peak_tflops": "h100"}


def test_three_ways_to_hide():
    answer = STEP.ask({**COMMON, "global_tokens": "1048576"})
    compute, comm = answer["compute_seconds"], answer["comm_seconds"]
    assert answer["step_seconds_overlap"] == max(compute, comm)
    assert answer["step_seconds_backward_overlap"] == pytest.approx(compute / 3 + max(compute * 2 / 3, comm))
    assert answer["step_seconds_no_overlap"] == compute + comm
    assert "bound by communication" in answer.advice[0]


def test_a_part_of_a_sequence_is_impossible_and_said():
    """E17."""
    answer = STEP.ask({**COMMON, "global_tokens": "1048576"})
    assert answer["whole_sequences"] is False and answer["tokens_per_rank"] == 512
    assert "0.125 sequences of 4096; use at most 256 ranks" in answer.warnings[0]
    assert "or raise the global batch to 8,388,608 tokens" in answer.warnings[0]
    tiny = STEP.ask({**COMMON, "global_tokens": "512"})
    assert "use at most" not in tiny.warnings[0] and "; raise the global batch" in tiny.warnings[0]
    odd = STEP.ask({**COMMON, "ranks": "2", "global_tokens": "12288"})
    assert "a multiple of ranks * seq" in odd.warnings[0]


def test_too_little_per_rank_is_warned_of():
    """A9."""
    answer = STEP.ask({**COMMON, "seq": "512", "global_tokens": "1048576"})
    assert len(answer.warnings) == 1 and "global batch must grow" in answer.warnings[0]
    assert not STEP.ask({**COMMON, "micro_batch": "1"}).warnings


def test_tokens_are_given_once():
    for given in ({}, {"micro_batch": "1", "global_tokens": "4M"}):
        with pytest.raises(InputError, match="either --micro-batch"):
            STEP.ask({**COMMON, **given})


CLUSTER = {"bandwidth": "400GB/s", "peak_tflops": "989"}


def test_the_step_is_bound_by_compute_before_the_wall_and_not_after():
    wall = WALL.ask({**CLUSTER, "global_tokens": "1M"})["wall_ranks_whole_step"]
    for ranks, bound in ((int(wall), "compute"), (int(wall) + 1, "communication")):
        given = {**CLUSTER, "params": "1B", "ranks": str(ranks), "seq": "1", "global_tokens": "1M"}
        assert f"bound by {bound}" in STEP.ask(given).advice[0]


def test_half_the_wire_is_the_wall_of_the_narrower_type():
    half = WALL.ask({**CLUSTER, "global_tokens": "1M"})["wall_ranks_half_the_wire"]
    assert half == WALL.ask({**CLUSTER, "global_tokens": "1M", "wire": "fp8"})["wall_ranks_whole_step"]


BOUNDS = [(500, "communication"), (1000, "communication, unless"), (2000, "compute")]


@pytest.mark.parametrize(("tokens", "bound"), BOUNDS)
def test_break_even(tokens, bound):
    answer = BREAK_EVEN.ask({**CLUSTER, "tokens_per_rank": str(tokens)})
    assert answer["bound_by"].startswith(bound)
    assert answer["break_even_tokens_per_rank_whole_step"] == pytest.approx(824.17, rel=1e-4)


def test_efficiency_falls_at_a_fixed_batch_and_stays_at_a_growing_one():
    fixed = EFFICIENCY.ask({**CLUSTER, "params": "7B", "global_tokens": "1M", "ranks": "1,1024,4096"})
    shares = [figure.value for figure in fixed.figures]
    assert shares[0] == 1 and shares[1] == 1 and shares[2] == pytest.approx(1e6 / 4096 / 824.17, rel=2e-3)
    assert "each rank's part shrinks" in fixed.warnings[0]
    growing = EFFICIENCY.ask({**CLUSTER, "params": "7B", "tokens_per_rank": "1K", "ranks": "1,1024,4096"})
    assert [figure.value for figure in growing.figures] == [1, 1, 1] and not growing.warnings


def test_latency_is_paid_in_every_round():
    given = {**CLUSTER, "params": "7B", "global_tokens": "1M", "ranks": "64,1024"}
    plain, slow = (EFFICIENCY.ask({**given, **more}).tables[0].rows for more in ({}, {"latency_us": "50us"}))
    assert [b[2] - a[2] for a, b in zip(plain, slow, strict=True)] == pytest.approx([2 * 63 * 50e-6, 2 * 1023 * 50e-6])


def test_efficiency_needs_one_batch():
    with pytest.raises(InputError, match="either --tokens-per-rank"):
        EFFICIENCY.ask({**CLUSTER, "params": "7B"})


@pytest.mark.parametrize(("ranks", "name"), [(1, "plain"), (8, "plain"), (9, "larger-batch"), (1024, "zero-1-2")])
def test_regimes(ranks, name):
    assert REGIME.ask({"ranks": str(ranks)})["regime"] == name


def test_beyond_the_last_regime_and_beyond_any_device():
    answer = REGIME.ask({"ranks": str(REGIMES[-1][0] + 1), "params": "600B"})
    assert answer["regime"] == "beyond" and "ZeRO-3" in answer.warnings[0]


# The overview: the answers of its parts, and the stage that fits.

(OVERVIEW,) = overview.KINDS
_, LR, _ = batch.KINDS


def test_sections_are_the_kinds_own_answers():
    answer = OVERVIEW.ask({"params": "70B"})
    sections = dict(answer.sections)
    given = {"params": "70B", "ranks": "256", "micro_batch": "1", "seq": "4096", "bandwidth": "400GB/s"}
    assert sections["How long is a step?"] == STEP.ask({**given, "peak_tflops": "h100"})
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
