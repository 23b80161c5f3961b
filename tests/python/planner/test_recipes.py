"""ringdp/planner/recipes.py: against a simulation, a search, and the recipe's identity."""

from __future__ import annotations

import random

import pytest
from ringdp.planner import recipes as f


def test_the_suggested_bucket_costs_least():
    def cost(bucket: float) -> float:
        return 1e9 / bucket * 1e-5 + bucket / 4e11

    best = f.suggested_bucket_bytes(1e9, 4e11, 1e-5)
    assert cost(best) < min(cost(1.1 * best), cost(best / 1.1))
    assert f.suggested_bucket_bytes(1e3, 4e11, 1e-5) == 1e3


def test_shares_of_samples_by_simulation():
    ranks, samples, batch = 4, 64, 8
    source = random.Random(11)
    order = list(range(samples))
    step, epoch, rounds = 0, 0, 4000
    for _ in range(rounds):
        shuffles = [source.sample(order, samples) for _ in range(ranks)]
        step += len({i for shuffle in shuffles for i in shuffle[:batch]})
        epoch += len({i for shuffle in shuffles for i in shuffle[: samples // ranks]})
    expected = f.independent_distinct_share_per_step(ranks, samples, batch)
    assert step / rounds / (ranks * batch) == pytest.approx(expected, rel=0.01)
    assert epoch / rounds / samples == pytest.approx(f.independent_seen_share_per_epoch(ranks), rel=0.01)


def test_the_batch_identity():
    assert 2 * f.grad_acc(1024, 2, 128) * 128 == 1024


def test_learning_rate_and_warm_up():
    assert f.scaled_lr(3e-4, 8) == pytest.approx(8 * 3e-4) and f.warmup_steps(20000, 0.05) == 1000


def test_a_bucket_in_launches():
    assert f.transfer_to_launch_ratio(25e6, 400e9, 10e-6) == pytest.approx(62.5 / 10)


def test_the_same_seed_shows_one_rank_s_samples():
    assert f.same_seed_distinct_share(8) == len({sample for _ in range(8) for sample in range(64)}) / (8 * 64)
