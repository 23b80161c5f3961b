"""ringdp/planner/step.py: what hides, what shows, and what cannot be."""

import pytest
from ringdp.planner.kind import InputError
from ringdp.planner.step import KINDS

(STEP,) = KINDS
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
