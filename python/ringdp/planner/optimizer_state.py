"""Bytes that an optimizer keeps, counted by stepping it once on the meta device."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ringdp.planner.fake_memory import CannotCount

Maker = Callable[[Iterable[nn.Parameter]], Optimizer]


def maker_of(optimizer: Optimizer | Maker) -> Maker:
    """What makes such an optimizer: a class or function as it is, of an instance its class with the same settings."""
    if not isinstance(optimizer, Optimizer):
        return optimizer
    kind = type(optimizer)
    accepted = inspect.signature(kind.__init__).parameters
    settings = {name: value for name, value in optimizer.defaults.items() if name in accepted}
    return lambda parameters: kind(parameters, **settings)


def state_bytes(optimizer: Optimizer | Maker, parameters: Iterable[Tensor]) -> int:
    """Of all parameters that are trained, without masters. CannotCount when its step needs values."""
    shapes = [nn.Parameter(torch.empty_like(p, device="meta")) for p in parameters if p.requires_grad]
    if not shapes:
        return 0
    for shape in shapes:
        shape.grad = torch.empty_like(shape)
    try:
        made = maker_of(optimizer)(shapes)
        made.step()
    except Exception as error:  # a class of the user's may fail in any way without values
        name = getattr(optimizer, "__name__", type(optimizer).__name__)
        said = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise CannotCount(f"{name} cannot step without values ({said}): give optimizer_bytes= instead") from error
    return held_bytes(made)


def held_bytes(optimizer: Optimizer) -> int:
    """Of the tensors in its state now."""
    kept: list[Any] = [value for entry in optimizer.state.values() for value in entry.values()]
    return sum(value.nbytes for value in kept if torch.is_tensor(value))
