"""State with elements and state without, also where shapes do not tell them apart."""

from __future__ import annotations

import pytest
import torch
from ringdp.zero.elements import is_number, is_per_element

NUMBERS = {"ASGD": {"step", "eta", "mu"}, "NAdam": {"step", "mu_product"}, "AdamW": {"step"}, "Rprop": {"step"}}


@pytest.mark.parametrize("shape", [(), (1,), (3, 2)])
@pytest.mark.parametrize("kind", NUMBERS)
def test_numbers_of_torchs_optimizers_are_told_apart(kind, shape):
    parameter = torch.nn.Parameter(torch.ones(shape))
    optimizer = getattr(torch.optim, kind)([parameter], lr=0.1)
    parameter.grad = torch.ones(shape)
    optimizer.step()
    state = {key: value for key, value in optimizer.state[parameter].items() if torch.is_tensor(value)}
    assert {key for key, value in state.items() if not is_per_element(key, value.shape, shape)} == NUMBERS[kind]


def test_numbers_are_known_by_name_or_by_their_shape():
    assert is_number("step", (1,)) and is_number("mine", ())
    assert not is_number("exp_avg", (1,)) and not is_number("exp_avg", (3, 2))
