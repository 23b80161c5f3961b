"""How much is done: what fits the budget, and steps that ranks with different budgets have in common."""

from __future__ import annotations

import pytest
from ringdp.tools.watch.effort import Effort


def settled(cost, step, budget=0.005):
    """Seconds that are spent of a second, once it knows. cost: of a step that is looked at with one block."""
    effort, key = Effort(budget), 0
    for _ in range(60):
        spent = passed = 0.0
        looked = 0
        while looked < 16:
            key += 1
            passed += step
            effort.passed(step)
            if effort.selects(key):
                looked += 1
                spent += cost * (0.5 + 0.5 * effort.blocks)
                effort.spent(cost * (0.5 + 0.5 * effort.blocks))
        effort.adapt()
    return spent / passed


@pytest.mark.parametrize("step", [1e-4, 1e-3, 0.02, 1.0])
@pytest.mark.parametrize("cost", [2e-5, 2e-4])
def test_it_stays_within_its_budget(cost, step):
    assert settled(cost, step) <= 0.005


def test_what_is_cheap_looks_at_more():
    effort = Effort(0.005)
    for _ in range(20):
        effort.passed(1.0)
        effort.spent(1e-6)
        effort.adapt()
    assert effort.blocks == 16 and all(map(effort.selects, range(100)))


def test_a_rank_that_does_less_looks_at_some_of_the_others_steps():
    much, little = Effort(0.005), Effort(0.005)
    for effort, times in ((much, 2), (little, 4)):
        for _ in range(times):
            effort.passed(1.0)
            effort.spent(1.0)
            effort.adapt()
    for stride in (1, 7, 64):
        keys = range(0, 4096 * stride, stride)
        of_much, of_little = set(filter(much.selects, keys)), set(filter(little.selects, keys))
        assert of_little < of_much
        assert 4096 / 4 * 0.5 < len(of_much) < 4096 / 4 * 2 and 4096 / 16 * 0.5 < len(of_little) < 4096 / 16 * 2
