"""Batch recipe and data feed: rounding, the identity, limits of the shares, and the advice that goes with a row."""

from __future__ import annotations

import pytest
from ringdp.tools.planner.batch import batch, feed, lr, nearest_power_of_two
from ringdp.tools.planner.question import InputError


def test_the_nearest_power_of_two_by_search():
    for samples in range(1, 3000):
        distances = {2**k: abs(samples - 2**k) for k in range(13)}
        assert distances[nearest_power_of_two(samples)] == min(distances.values())


@pytest.mark.parametrize("dp", [1, 3, 128, 512])
def test_the_identity_holds(dp):
    answer = batch(4e6, 4096, 2, dp)
    assert answer["grad_acc"] * 2 * dp == pytest.approx(answer["samples"])
    assert answer["rounded_global_tokens"] == answer["samples"] * 4096


def test_too_many_ranks_get_three_ways_out():
    (advice,) = batch(4e6, 4096, 2, 1024).advice
    assert "lower --micro-batch to 1;" in advice
    assert "raise the global batch to 2048 samples (8,388,608 tokens)" in advice
    assert "use 512 ranks and leave 512 idle" in advice
    (advice,) = batch(4e6, 4096, 2, 4096).advice
    assert "lower --micro-batch" not in advice  # not even one sample per rank
    (advice,) = batch(4e6, 4096, 2048, 4).advice
    assert "idle" not in advice and advice.endswith("tokens)")  # not even one rank with such a micro-batch


def test_an_accumulation_that_is_not_whole_gets_its_neighbours():
    (advice,) = batch(4e6, 4096, 2, 96).advice
    assert "5 micro-batches (960 samples) or 6 (1152)" in advice


@pytest.mark.parametrize(("micro_batch", "accumulation"), [(12, 8), (1, 96), (96, 1)])
def test_a_batch_that_comes_out_even_is_taken_as_it_is(micro_batch, accumulation):
    """384 samples, which lie half-way between two powers of two."""
    answer = batch(98304, 256, micro_batch, 4)
    assert (answer["samples"], answer["grad_acc"]) == (384, accumulation)
    assert answer.advice == (f"{micro_batch} x {accumulation} x 4 = 384 samples per step",)


def test_the_neighbours_are_those_of_what_was_asked_for():
    (advice,) = batch(390 * 256, 256, 12, 4).advice  # and not of 512
    assert "take 8 micro-batches (384 samples) or 9 (432)" in advice


def test_the_rows_are_those_of_the_recipe_and_one_s_own():
    (table,) = batch(4e6, 4096, 2, 64).tables
    assert [row[:2] for row in table.rows] == [(64, 8), (128, 4), (512, 1), (1024, 0.5)]
    assert [row[2] for row in table.rows] == ["works", "works", "works", "too many ranks"]


def test_less_than_a_sequence_is_refused():
    with pytest.raises(InputError, match="less than one sequence"):
        batch(1000, 4096, 1, 1)


def test_learning_rate():
    answer = lr(1e-3, None, None, 4, 300, 0.1)
    assert (answer["scaled_lr"], answer["warmup_steps"]) == (4e-3, 30)
    assert lr(1e-3, 32, 16, 4, 300, 0.1)["scaled_lr"] == 2e-3  # 64 samples instead of 32
    with pytest.raises(InputError, match="belong together"):
        lr(1e-3, 32, None, 4, 300, 0.1)


def test_one_rank_sees_everything():
    answer = feed(1, 100, 10)
    assert [figure.value for figure in answer.figures] == pytest.approx([1, 1, 1])


def test_whole_batches_are_one_another_s_copies():
    assert feed(8, 64, 64)["independent_distinct_share_per_step"] == feed(8, 64, 64)["same_seed_distinct_share"]


def test_more_than_all_samples_is_refused():
    with pytest.raises(InputError, match="--micro-batch 65 is more than all --samples 64"):
        feed(8, 64, 65)
