"""The learning rate: N times one rank's, reached over the first 5 % of the steps, then down to a tenth."""

from __future__ import annotations

import math

from torch.optim import Optimizer

WARM_UP_SHARE = 0.05
FLOOR_SHARE = 0.1


def warm_up_steps(steps: int) -> int:
    """Steps of the linear warm-up: 5 % of the run, at least one."""
    return max(1, round(WARM_UP_SHARE * steps))


def learning_rate(step: int, steps: int, rate_of_one: float, world: int) -> float:
    """The rate of step 0..steps-1. The linear rule: N times the samples per step, so N times the rate."""
    peak = rate_of_one * world
    warm_up = warm_up_steps(steps)
    if step < warm_up:
        return peak * (step + 1) / warm_up
    way = (step - warm_up) / max(1, steps - warm_up)
    return peak * (FLOOR_SHARE + (1 - FLOOR_SHARE) * 0.5 * (1 + math.cos(math.pi * way)))


def set_rate(optimizer: Optimizer, rate: float) -> None:
    """Every parameter group takes this learning rate."""
    for group in optimizer.param_groups:
        group["lr"] = rate
