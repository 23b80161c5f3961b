"""The ring by hand: sums of any length, the textbook's figures, ringdp's bits."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from ranks import HERE
from ringdp.examples import scratch_ring

LENGTHS = [0, 1, 2, 3, 4, 5, 7, 8, 1001]
# Of 4 ranks, in float64; textbooks print (-24.4438, -10.2058), 2.4444 and 1.0206.
GRADIENT, W, B = (-24.443813250224323, -10.205812899383586), 2.44438132502, 1.02058128994


def sums_by_hand() -> list[bool]:
    """On a rank: whether the ring gives the sums, for every length; whole numbers, so every order is exact."""
    equal = []
    for length in LENGTHS:
        parts = [torch.arange(length).float() * (rank + 1) + rank for rank in range(HERE.size)]
        mine = parts[HERE.rank].clone()
        total = scratch_ring.ring_all_reduce(mine)
        equal.append(torch.equal(total, sum(parts)) and torch.equal(mine, parts[HERE.rank]))
    return equal


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_the_ring_sums_any_length(world_of, ranks):
    for equal in world_of(ranks).run(sums_by_hand):
        assert equal == [True] * len(LENGTHS)


def rounds_of(length: int) -> tuple[list[tuple[int, int]], list[float]]:
    """On a rank: (elements sent, received) in every round, and the sum."""
    rounds, pass_on = [], scratch_ring.pass_on

    def counting(leaving: torch.Tensor, arriving: torch.Tensor) -> torch.Tensor:
        rounds.append((leaving.numel(), arriving.numel()))
        return pass_on(leaving, arriving)

    scratch_ring.pass_on = counting
    try:
        total = scratch_ring.ring_all_reduce(torch.tensor([(HERE.rank + 1) * 10.0 + c for c in range(length)]))
    finally:
        scratch_ring.pass_on = pass_on
    return rounds, total.tolist()


def test_four_ranks_take_six_rounds_of_a_quarter(world_of):
    for rounds, total in world_of(4).run(rounds_of, 4):
        assert rounds == [(1, 1)] * 6  # 24 bytes of 16
        assert total == [100.0, 104.0, 108.0, 112.0]


def on_a_rank() -> dict:
    return scratch_ring.work()


def test_the_step_has_the_figures_of_the_whole_batch(world_of):
    reports = world_of(4).run(on_a_rank)
    for report in reports:
        assert report == reports[0]
        assert report["mean_gradient"] == pytest.approx(GRADIENT, rel=1e-6)
        assert report["big_batch_gradient"] == pytest.approx(GRADIENT, rel=1e-14)
        assert (report["w"], report["b"]) == pytest.approx((W, B), rel=1e-6)
        assert np.mean(report["local_gradients"], axis=0) == pytest.approx(GRADIENT, rel=1e-14)


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_by_hand_and_by_ringdp_have_the_same_bits(world_of, ranks):
    for report in world_of(ranks).run(on_a_rank):
        assert report["equal_to_ringdp_ring"]
        assert report["gap_to_rank_order"] <= (0.0 if ranks == 2 else 1e-5)  # two addends have one order


def test_on_ranks_it_prints_json(on_two_ranks):
    report = on_two_ranks(scratch_ring.MODULE)
    assert report["ranks"] == 2 and report["mean_gradient"] == pytest.approx(report["big_batch_gradient"], rel=1e-6)
    assert "mean over the ring" in scratch_ring.render(report)


def test_another_sum_would_be_shown():
    report = {"local_gradients": [[1.0, 2.0]], "mean_gradient": [1.0, 2.0], "big_batch_gradient": [1.0, 3.0]}
    report |= {"w": 1.0, "b": 1.0, "equal_to_ringdp_ring": False, "gap_to_rank_order": 0.0}
    assert "same bits    NO" in scratch_ring.render(report)
