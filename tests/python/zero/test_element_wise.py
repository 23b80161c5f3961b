"""Which optimizers run on shards, and which tensors of their state are per element."""

from __future__ import annotations

import inspect

import pytest
import torch
from ringdp.zero.element_wise import ELEMENT_WISE, check_class, is_number, is_per_element


def classes_of_torch() -> dict[str, type[torch.optim.Optimizer]]:
    found = inspect.getmembers(torch.optim, inspect.isclass)
    return {n: c for n, c in found if issubclass(c, torch.optim.Optimizer) and c is not torch.optim.Optimizer}


def test_every_class_of_torch_is_served_or_refused_with_a_reason():
    for name, found in classes_of_torch().items():
        if name in ELEMENT_WISE:
            check_class(found)
            continue
        with pytest.raises(ValueError, match=f"{name} cannot run on shards: it") as caught:
            check_class(found)
        assert "is not known" not in str(caught.value), f"{name} is new: say in classes.py what it does"


class Mine(torch.optim.SGD):
    """Of somebody else."""


def test_strangers_say_that_they_are_element_wise():
    with pytest.raises(ValueError, match="Mine cannot run on shards: it is not known"):
        check_class(Mine)
    check_class(type("Yours", (Mine,), {"element_wise": True}))


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
