"""The table names every optimizer of the installed torch, and refusals give the reason."""

from __future__ import annotations

import inspect

import pytest
import torch
from ringdp.zero.classes import ELEMENT_WISE, check_class


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
