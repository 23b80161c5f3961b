"""Which wrapper shards which parameter, for ZeroOptimizer and clipping, and to refuse other optimizers."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Iterable
from typing import Any

import torch
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.weak import WeakTensorKeyDictionary

_wrappers = WeakTensorKeyDictionary()  # parameter -> weak reference to its wrapper
# Optimizers that were not refused, with the sizes that their groups had then.
_passed: weakref.WeakKeyDictionary[Optimizer, list[int]] = weakref.WeakKeyDictionary()


def add(wrapper: Any, parameters: Iterable[torch.Tensor]) -> None:
    """From now on only a `ZeroOptimizer` may step these parameters, as long as `wrapper` lives."""
    _install()
    _passed.clear()  # they may contain these parameters
    reference = weakref.ref(wrapper)
    for parameter in parameters:
        _wrappers[parameter] = reference


def wrapper_of(parameter: torch.Tensor) -> Any | None:
    """The wrapper with a zero_stage of 1 or more that this parameter belongs to."""
    reference = _wrappers.get(parameter)
    return reference() if reference is not None else None


def one_wrapper_of(parameters: Iterable[torch.Tensor]) -> Any | None:
    """The wrapper of all these parameters, or None. ValueError if they belong to several, or only some to one."""
    wrappers: dict[int, Any] = {}
    loose: list[torch.Tensor] = []
    for parameter in parameters:
        wrapper = wrapper_of(parameter)
        if wrapper is None:
            loose.append(parameter)
        else:
            wrappers[id(wrapper)] = wrapper
    if len(wrappers) > 1:
        raise ValueError(
            f"ZeroOptimizer: the parameters belong to {len(wrappers)} different wrappers: "
            "give each wrapper an optimizer of its own"
        )
    wrapper = next(iter(wrappers.values()), None)
    if wrapper is not None and loose:
        raise ValueError(
            f"ZeroOptimizer: {_listed(loose, wrapper.module)} not averaged by the wrapper of the others (it was told "
            "to ignore them, or was made without them): step them with an optimizer of their own"
        )
    return wrapper


def described(parameter: torch.Tensor) -> str:
    """For messages: the parameter's name if a wrapper knows it, otherwise its shape."""
    wrapper = wrapper_of(parameter)
    return _described(parameter, wrapper.module) if wrapper is not None else f"a parameter {_shape(parameter)}"


def _listed(loose: list[torch.Tensor], module: torch.nn.Module) -> str:
    first = _described(loose[0], module)
    return f"{first} is" if len(loose) == 1 else f"{first} and {len(loose) - 1} more are"


def _described(parameter: torch.Tensor, module: torch.nn.Module) -> str:
    names = {id(known): name for name, known in module.named_parameters()}
    return f"parameter {names.get(id(parameter), _shape(parameter))}"


def _shape(parameter: torch.Tensor) -> str:
    return f"of shape {list(parameter.shape)}"


@functools.cache
def _install() -> None:
    register_optimizer_step_pre_hook(_refuse_others)


def _refuse_others(optimizer: Optimizer, *_: object) -> None:
    """Before every step of every optimizer: RuntimeError when it would undo the sharding."""
    sizes = [len(group["params"]) for group in optimizer.param_groups]
    if _passed.get(optimizer) == sizes:
        return
    if not getattr(optimizer, "steps_shards", False):
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                wrapper = wrapper_of(parameter)
                if wrapper is not None:
                    kind = type(optimizer).__name__
                    raise RuntimeError(
                        f"{kind} cannot step parameters of a DistributedDataParallel with zero_stage="
                        f"{wrapper.zero_stage}; only ringdp.ZeroOptimizer can: write ringdp.ZeroOptimizer("
                        f"ddp.parameters(), optimizer_class={kind}, ...), or use zero_stage=0"
                    )
    _passed[optimizer] = sizes
