"""Refuses optimizer steps with gradients that were not averaged over the ranks.

A wrapper averages the gradients of a synchronised pass. What is added later, or assigned to `.grad` by hand, belongs to
one rank only: at stage 0 replicas would drift apart; with shards they would stay equal and be wrong.
"""

from __future__ import annotations

import functools
import itertools
import math
import warnings
import weakref
from typing import Any

import torch
import torch.distributed as dist
from torch.optim import LBFGS, Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from ringdp import _native
from ringdp.ddp import registrations

_C = _native.load()
_numbers = itertools.count()
# In the order in which they were made, which is that of all ranks: leaves are averaged in this order.
_reducers: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
_warned: weakref.WeakSet[Any] = weakref.WeakSet()
# Which reducers' passes each optimizer has stepped with so far.
_stepped: weakref.WeakKeyDictionary[Optimizer, weakref.WeakKeyDictionary[Any, int]] = weakref.WeakKeyDictionary()


def watch(reducer: Any) -> None:
    """Checks every optimizer step that uses parameters of this reducer, as long as it lives."""
    install()
    _reducers[next(_numbers)] = reducer


@functools.cache
def install() -> None:
    """From now on steps are checked."""
    register_optimizer_step_pre_hook(_before_step)


def _before_step(
    optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """Before every step of every optimizer. The gradients of a step with a closure are there when that has ended."""
    if torch.compiler.is_compiling():
        return None
    by_place = len(args) > 1
    closure = args[1] if by_place else kwargs.get("closure")
    if not callable(closure):
        check(optimizer)
        return None

    def checked() -> Any:
        loss = closure()
        check(optimizer)
        if isinstance(optimizer, LBFGS) and optimizer.param_groups[0]["max_iter"] > 1:
            _check_losses(optimizer, loss)
        return loss

    if by_place:
        return (args[0], checked, *args[2:]), kwargs
    return args, {**kwargs, "closure": checked}


def check(optimizer: Optimizer) -> None:
    """Averages leaves; RuntimeError names a gradient that was not averaged."""
    for reducer in list(_reducers.values()):
        if reducer.leaf_steps is not None:
            reducer.leaf_steps.before_step(_parameters_of(optimizer))
        if _suspicious(optimizer, reducer) and reducer.zero_stage < 2:
            _refuse(optimizer, reducer)
    registrations.check(optimizer)


def _check_losses(optimizer: Optimizer, loss: Any) -> None:
    """LBFGS chooses how far it goes, and how often it evaluates, by losses. RuntimeError if those of ranks differ."""
    stepped = _parameters_of(optimizer)
    for reducer in list(_reducers.values()):
        ddp = reducer.wrapper()
        if ddp is None or ddp._join_config.enable or not reducer.ids & stepped:
            continue
        own = torch.tensor([float(loss)], dtype=torch.float64, device=ddp.device)
        by_rank = [torch.empty_like(own) for _ in range(ddp.process_group.size())]
        dist.all_gather(by_rank, own, group=ddp.process_group)
        losses = [value.item() for value in by_rank]
        if len(set(losses)) > 1 and not all(map(math.isnan, losses)):
            raise RuntimeError(
                f"DistributedDataParallel: LBFGS chooses its steps by the loss, and the ranks' differ ({losses}), so "
                "parameters would: return from the closure the mean of all ranks, by dist.all_reduce(loss, "
                "op=dist.ReduceOp.AVG) after backward()"
            )


def _parameters_of(optimizer: Optimizer) -> set[int]:
    """Their ids."""
    return {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}


def _suspicious(optimizer: Optimizer, reducer: Any) -> bool:
    without_pass = _stepped.get(optimizer, {}).get(reducer, 0) == reducer.passes()
    _stepped.setdefault(optimizer, weakref.WeakKeyDictionary())[reducer] = reducer.passes()
    return without_pass or reducer.may_be_unaveraged()


def _refuse(optimizer: Optimizer, reducer: Any) -> None:
    found = reducer.unaveraged()
    stepped = _parameters_of(optimizer) if found else set()
    for index, cause in found:
        if id(reducer.parameters[index]) not in stepped:
            continue
        if not _may_step(reducer, cause):
            reducer.check_finished()  # if a pass has not ended, its error names the gradients that are missing
            raise RuntimeError(explained(reducer, index, cause))
        if cause == "kept":
            reducer.note_stepped_alone()
            if reducer.passes() > 0:
                _warn_of_kept(reducer, index)


def _warn_of_kept(reducer: Any, index: int) -> None:
    """Once per wrapper: it may be meant, and it is what the last, incomplete window of an accumulation does."""
    if reducer not in _warned:
        _warned.add(reducer)
        warnings.warn(
            f"DistributedDataParallel: optimizer.step() uses gradients that no_sync() has kept on this rank (the first "
            f"is that of {reducer.names[index]}). Unless you have averaged them, or average parameters later, ranks "
            "differ from here on: leave no_sync() out in the last micro-batch before a step, also where the data ends",
            RuntimeWarning,
            stacklevel=6,
        )


def _may_step(reducer: Any, cause: str) -> bool:
    if cause == "kept":
        return reducer.zero_stage == 0  # ranks that train separately for some steps, or average by themselves
    return cause == "foreign" and (reducer.has_hook or reducer.steps_in_backward)  # hooks step before the pass is over


def explained(reducer: Any, index: int, cause: str) -> str:
    """The error message for a gradient that was not averaged."""
    name = reducer.names[index]
    if cause == "late" and reducer.leaf_steps is not None:
        return (
            f"DistributedDataParallel: the gradient of {name} comes from a backward pass outside of ringdp.leaf, which "
            "is not averaged: run it in a leaf, or call zero_grad() after it"
        )
    if cause == "late":
        return "DistributedDataParallel: " + _C.came_late(name)
    if cause == "kept":
        return (
            f"ZeroOptimizer: the gradient of {name} has not been averaged: the last backward pass ran under no_sync(). "
            "Leave no_sync() out in the last micro-batch before step()"
        )
    way_out = "use zero_stage=0 and " if reducer.zero_stage else ""
    return (
        f"DistributedDataParallel: the gradient of {name} has not been averaged: it was put into .grad by hand, or the "
        "model was converted after it was wrapped, and no backward pass of the wrapper has left it there. Call "
        f"backward() on a model that was wrapped as it is; or, to average by yourself, {way_out}run the passes under "
        "no_sync()"
    )
