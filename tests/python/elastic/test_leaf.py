"""ringdp.leaf: random numbers depend on seed, step and leaf only."""

from __future__ import annotations

import random
import re

import numpy as np
import pytest
import ringdp
import torch
from ringdp.elastic.leaf import running


def drawn() -> list[float]:
    return [random.random(), float(np.random.rand()), float(torch.rand(()))]


def inside(step: int, leaf: int, seed: int = 0) -> list[float]:
    with ringdp.leaf(step, leaf, seed=seed):
        return drawn()


def test_numbers_depend_on_seed_step_and_leaf_only():
    first = inside(3, 1)
    drawn()
    assert inside(3, 1) == first
    for other in (inside(3, 2), inside(4, 1), inside(1, 3), inside(3, 1, seed=1)):
        assert not set(other) & set(first)


@pytest.mark.parametrize("given", [(True, 0, 0), (0, 1.5, 0), (0, 0, "1"), (0, torch.tensor(1.0), 0), (0, 0, False)])
def test_numbers_are_whole_ones(given):
    step, index, seed = given
    said = re.escape(f"ringdp.leaf({step!r}, {index!r}, seed={seed!r}): step, index and seed must be whole numbers")
    with pytest.raises(ValueError, match=said), ringdp.leaf(step, index, seed=seed):
        pass
    assert inside(np.int64(3), torch.tensor(1), np.int32(2)) == inside(3, 1, 2)


def test_outside_nothing_has_been_drawn():
    def begin() -> None:
        random.seed(5), np.random.seed(5), torch.manual_seed(5)

    begin()
    want = drawn()
    begin()
    inside(0, 0)
    with pytest.raises(ZeroDivisionError), ringdp.leaf(0, 1):
        drawn()
        raise ZeroDivisionError
    assert drawn() == want
    assert running() is None
