"""Whether all ranks' optimizers step with the same settings, and equally often.

A rate that a scheduler has made of this rank's own loss, or a step that one rank leaves out, makes replicas differ;
with shards they stay equal and are wrong. So a digest of the settings of each rank's latest step travels with the first
bucket of its next pass, where it costs nothing, and where digests differ every rank names the setting.
"""

from __future__ import annotations

import functools
import hashlib
import sys
import weakref
from types import FrameType
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

_reducers: weakref.WeakSet[Any] = weakref.WeakSet()


class Settings:
    """Of the optimizers that have stepped the parameters of one reducer since its latest pass."""

    def __init__(self) -> None:
        self._passes = self._steps = 0
        self._stepped: dict[int, _Optimizer] = {}  # by id, in the order of the steps

    def take(self, optimizer: Optimizer, passes: int) -> None:
        """Before a step. passes: how many times gradients were averaged."""
        if passes != self._passes:
            self._passes = passes
            self._steps += 1
            self._stepped.clear()
        names = list(optimizer.defaults)
        groups = [[_plain(group.get(name)) for name in names] for group in optimizer.param_groups]
        self._stepped[id(optimizer)] = _Optimizer(type(optimizer).__name__, names, groups)

    def told(self) -> dict[str, str]:
        """By name, the same names on all ranks."""
        found = {"number of steps": str(self._steps)}
        for place, stepped in enumerate(self._stepped.values()):
            which = stepped.kind + (f" number {place}" if place else "")
            for number, group in enumerate(stepped.groups):
                names = (f"{name} of param group {number} of {which}" for name in stepped.names)
                found.update(zip(names, map(repr, group), strict=True))
        return found

    def digest(self) -> int:
        """Not 0."""
        text = repr([self._steps, *(stepped.groups for stepped in self._stepped.values())])
        return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") | 1


class _Optimizer(NamedTuple):
    """What torch's class knows as its settings, by group."""

    kind: str
    names: list[str]
    groups: list[list[Any]]


def watch(reducer: Any) -> None:
    """From now on steps with parameters of this reducer are noted."""
    _install()
    _reducers.add(reducer)


def check(reducer: Any) -> None:
    """When a pass has ended. Every rank raises RuntimeError with the first setting that differs."""
    if not reducer.differs():
        return
    ddp = reducer.wrapper()
    by_rank: list[dict[str, str]] = [{}] * ddp.process_group.size()
    dist.all_gather_object(by_rank, reducer.settings.told(), group=ddp.process_group)
    names = dict.fromkeys(name for told in by_rank for name in told)
    for name in names:
        values = [told.get(name, "none") for told in by_rank]
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
    for reducer in list(_reducers):
        ddp = reducer.wrapper()
        if ddp is None or reducer.has_hook or reducer.steps_in_backward or not reducer.is_stepped_by(optimizer):
            continue
        if ddp._join_config.enable:  # ranks that have run out of inputs do not step
            reducer.set_agreed(0)
            continue
        reducer.settings.take(optimizer, reducer.passes())
        reducer.set_agreed(reducer.settings.digest())


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
    """None for a tensor of a device, for which this would wait."""
    if not torch.is_tensor(value):
        return value
    return value.tolist() if value.device.type == "cpu" else None
