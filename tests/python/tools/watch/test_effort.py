"""How much is done: what fits the budget, and steps that ranks with different budgets have in common."""

from __future__ import annotations

import pytest
from ringdp.tools.watch.effort import Effort


def settled(cost, step, budget=0.005):
    """The part of the time that is spent, once it knows. cost: of a step that is looked at with one block."""
    effort, spent, passed, number = Effort(budget), 0.0, 0.0, 0
    for _ in range(60):
        before = (spent, passed)
        for _ in range(32 * effort.stride):
            number += 1
            passed += step
            if number % effort.stride == 0:
                spent += cost * (0.5 + 0.5 * effort.blocks)
        effort.adapt(spent, passed)
    return (spent - before[0]) / (passed - before[1])


@pytest.mark.parametrize("step", [1e-4, 1e-3, 0.02, 1.0])
@pytest.mark.parametrize("cost", [2e-5, 2e-4])
def test_it_stays_within_its_budget(cost, step):
    assert settled(cost, step) <= 0.005


def adapted(share, times):
    effort = Effort(0.005)
    for number in range(times + 1):
        effort.adapt(share * number, number)
    return effort


def test_what_is_cheap_looks_at_more():
    effort = adapted(1e-6, 20)
    assert effort.blocks == 32 and effort.stride == 1


def test_what_costs_about_half_of_the_budget_stays():
    effort = adapted(0.0025, 20)
    assert (effort.blocks, effort.stride) == (8, 1)


def test_what_costs_too_much_looks_at_less_and_then_at_fewer_steps():
    assert [(effort.blocks, effort.stride) for effort in (adapted(1.0, times) for times in range(7))] == [
        (8, 1),
        (4, 1),
        (2, 1),
        (1, 1),
        (1, 2),
        (1, 4),
        (1, 8),
    ]


def test_what_a_first_report_takes_is_not_counted():
    effort = Effort(0.005)
    effort.adapt(10.0, 1.0)
    assert effort.blocks == 8
    effort.adapt(10.0, 1.0)  # no time has passed
    assert effort.blocks == 8
