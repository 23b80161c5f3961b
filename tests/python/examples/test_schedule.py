"""The learning rate: N times one rank's, a warm-up over 5 % of the steps, then down to a tenth."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from ringdp.examples.schedule import learning_rate, set_rate, warm_up_steps


@pytest.mark.parametrize(("steps", "warm_up"), [(1, 1), (10, 1), (100, 5), (400, 20), (1000, 50)])
def test_warm_up_is_five_percent_and_at_least_one_step(steps, warm_up):
    assert warm_up_steps(steps) == warm_up


@pytest.mark.parametrize("world", [1, 2, 8])
def test_the_peak_is_the_linear_rule(world):
    rates = [learning_rate(step, 400, 3e-4, world) for step in range(400)]
    assert max(rates) == pytest.approx(3e-4 * world, rel=1e-12)
    assert rates.index(max(rates)) == 19


def test_warm_up_is_linear_and_starts_above_zero():
    rates = [learning_rate(step, 400, 1.0, 1) for step in range(20)]
    assert rates == pytest.approx([(step + 1) / 20 for step in range(20)], rel=1e-12)


def test_after_the_peak_it_only_falls_to_a_tenth():
    rates = [learning_rate(step, 400, 1.0, 1) for step in range(19, 400)]
    assert all(later <= earlier for earlier, later in pairwise(rates))
    assert rates[-1] == pytest.approx(0.1, abs=1e-3)


def test_every_group_takes_the_rate():
    groups = [{"params": [torch.nn.Parameter(torch.zeros(1))]} for _ in range(2)]
    optimizer = torch.optim.SGD(groups, lr=1.0)
    set_rate(optimizer, 0.25)
    assert [group["lr"] for group in optimizer.param_groups] == [0.25, 0.25]
