"""Whether all ranks' optimizers step with the same settings, and equally often.

A rate that a scheduler has made of this rank's own loss, or a step that one rank leaves out, makes replicas differ;
with shards they stay equal and are wrong. So a digest of the settings of each rank's latest step travels with the first
bucket of its next pass, where it costs nothing, and where digests differ every rank names the setting.
"""

from __future__ import annotations

import functools
import hashlib
import numbers
import sys
import weakref
from types import FrameType
from typing import Any, NamedTuple

import torch
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from ringdp.gather_objects import gather_objects

_NOTHING = 1  # the digest of a rank that has not stepped since the latest pass
# Of each reducer that is watched: the optimizers that have stepped since its latest pass, by id.
_steps: weakref.WeakKeyDictionary[Any, dict[int, _Step]] = weakref.WeakKeyDictionary()


class _Step(NamedTuple):
    """What torch's class knows as the settings of an optimizer, by group that has parameters of the reducer."""

    kind: str
    names: list[str]
    groups: dict[int, list[Any]]


def watch(reducer: Any) -> None:
    """From now on steps with parameters of this reducer are noted."""
    _install()
    _steps[reducer] = {}
    forget(reducer)


def forget(reducer: Any) -> None:
    """Steps that were taken do not count: ranks have another state from here on."""
    if reducer in _steps:
        _steps[reducer] = {}
        reducer.set_agreed(_NOTHING)


def end_pass(reducer: Any) -> None:
    """Every rank raises RuntimeError with the first setting that differs in what came with the pass."""
    if reducer not in _steps:
        return
    told = _told(reducer)
    forget(reducer)
    ddp = reducer.wrapper()
    if not reducer.differs() or ddp._join_config.enable:  # ranks that have run out of inputs do not come here
        return
    by_rank: list[dict[str, str]] = gather_objects(told, ddp.process_group)
    names = dict.fromkeys(name for of_rank in by_rank for name in of_rank)
    for name in names:
        values = [of_rank.get(name, "no step") for of_rank in by_rank]
        if len(set(values)) > 1:
            raise RuntimeError(
                f"DistributedDataParallel: the ranks have not stepped alike: {name} by rank: {', '.join(values)}; "
                "parameters have been wrong since. Give schedulers what is equal on all ranks (the mean loss, by "
                "dist.all_reduce), and let all ranks step, or none. Restart from a checkpoint"
            )
    raise RuntimeError("DistributedDataParallel: a checksum has changed on its way: the memory of a rank is damaged")


@functools.cache
def _install() -> None:
    register_optimizer_step_pre_hook(_before_step)


def _before_step(optimizer: Optimizer, *_: object) -> None:
    if torch.compiler.is_compiling() or _is_inside_another(optimizer):
        return
    for reducer, steps in list(_steps.items()):
        ddp = reducer.wrapper()
        # Under join(), ranks that have run out of inputs do not step.
        if ddp is None or ddp._join_config.enable or reducer.has_hook or reducer.steps_in_backward:
            continue
        if step := _step_of(optimizer, reducer):
            steps[id(optimizer)] = step
            text = repr([step.groups for step in steps.values()])
            reducer.set_agreed(int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") | 2)


def _step_of(optimizer: Optimizer, reducer: Any) -> _Step | None:
    names = list(optimizer.defaults)
    groups = {
        number: [_plain(group.get(name)) for name in names]
        for number, group in enumerate(optimizer.param_groups)
        if any(id(parameter) in reducer.ids for parameter in group["params"])
    }
    return _Step(type(optimizer).__name__, names, groups) if groups else None


def _told(reducer: Any) -> dict[str, str]:
    """By name, the same names on all ranks; without those of a rank that has not stepped."""
    found: dict[str, str] = {}
    for place, step in enumerate(_steps[reducer].values()):
        which = step.kind + (f" number {place}" if place else "")
        for number, group in step.groups.items():
            names = (f"{name} of param group {number} of {which}" for name in step.names)
            found.update(zip(names, map(repr, group), strict=True))
    return found


def _is_inside_another(optimizer: Optimizer) -> bool:
    """Whether another optimizer's step() calls it, as torch's ZeroRedundancyOptimizer steps this rank's part."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if frame.f_code.co_name == "wrapper":  # torch's, around every step()
            stepping = frame.f_locals.get("self")
            if isinstance(stepping, Optimizer) and stepping is not optimizer:
                return True
        frame = frame.f_back
    return False


def _plain(value: Any) -> Any:
    """What is equal on all ranks where settings are: numbers as such, of anything else the type."""
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, numbers.Real):
        return float(value) + 0.0
    if isinstance(value, list | tuple):
        return tuple(map(_plain, value))
    if torch.is_tensor(value) and value.numel() == 1 and value.device.type == "cpu":  # for a device this would wait
        return float(value)
    return type(value).__name__
