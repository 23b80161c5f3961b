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
from typing import Any

import torch
import torch.distributed as dist
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

_reducers: weakref.WeakSet[Any] = weakref.WeakSet()


class Settings:
    """Of the optimizers that step the parameters of one reducer."""

    def __init__(self) -> None:
        self._known: weakref.WeakKeyDictionary[Optimizer, _Latest] = weakref.WeakKeyDictionary()

    def take(self, optimizer: Optimizer, passes: int, counts: bool) -> None:
        """Before a step. passes: those that gradients were averaged in; a step after none of them is not counted."""
        latest = self._known.setdefault(optimizer, _Latest())
        latest.steps += counts and passes != latest.passes
        latest.passes = passes
        latest.take(_settings_of(optimizer))

    def told(self) -> dict[str, Any]:
        """By name, the same names on all ranks; optimizers in the order in which they have first stepped."""
        found: dict[str, Any] = {}
        for place, (optimizer, latest) in enumerate(self._known.items()):
            which = type(optimizer).__name__ + (f" number {place}" if place else "")
            found[f"steps of {which}"] = latest.steps
            for number, group in enumerate(latest.groups):
                names = (f"{key} of param group {number} of {which}" for key in optimizer.defaults)
                found.update(zip(names, group, strict=True))
        return found

    def digest(self) -> int:
        """Not 0."""
        parts = [(latest.digest, latest.steps) for latest in self._known.values()]
        return _hashed(parts) | 1


class _Latest:
    """Of one optimizer; settings in the order of its defaults, by group."""

    def __init__(self) -> None:
        self.steps = self.passes = self.digest = 0
        self.groups: list[list[Any]] = []

    def take(self, groups: list[list[Any]]) -> None:
        if groups != self.groups:
            self.groups, self.digest = groups, _hashed(groups)


def _hashed(value: object) -> int:
    return int.from_bytes(hashlib.blake2b(repr(value).encode(), digest_size=8).digest(), "little")


def watch(reducer: Any) -> None:
    """From now on steps with parameters of this reducer are noted."""
    _install()
    _reducers.add(reducer)


def check(reducer: Any) -> None:
    """When a pass has ended. Every rank raises RuntimeError with the first setting that differs."""
    if not reducer.differs():
        return
    ddp = reducer.wrapper()
    by_rank: list[dict[str, Any]] = [{}] * ddp.process_group.size()
    dist.all_gather_object(by_rank, reducer.settings.told(), group=ddp.process_group)
    names = dict.fromkeys(name for told in by_rank for name in told)
    for name in names:
        values = [told.get(name) for told in by_rank if told]
        if any(value != values[0] for value in values):
            raise RuntimeError(
                f"DistributedDataParallel: the ranks have not stepped alike: {name} by rank: {values}; "
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
        # Under join() ranks that have run out of inputs do not step.
        reducer.settings.take(optimizer, reducer.passes(), counts=not ddp._join_config.enable)
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


def _settings_of(optimizer: Optimizer) -> list[list[Any]]:
    """What torch's class knows as settings; None for tensors of a device, for which this would wait."""
    return [[_plain(group.get(key)) for key in optimizer.defaults] for group in optimizer.param_groups]


def _plain(value: Any) -> Any:
    if not torch.is_tensor(value):
        return value
    return value.tolist() if value.device.type == "cpu" else None
