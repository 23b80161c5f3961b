"""Per optimizer step: learning rate, samples, and seconds in all and in what may wait for others.

Records: those of the feed; set_epoch (epoch: what a DistributedSampler was told);
step: step, optimizer, lr, samples, seconds, data (in loaders), called (in collectives), buffers (in broadcasts).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from torch.optim import optimizer as _optimizer
from torch.utils.data import DistributedSampler
from torch.utils.data import dataloader as _dataloader

from ringdp.doctor.probes.rig import Rig
from ringdp.feed.hooks import Watcher, unwatch, watch
from ringdp.feed.recorder import Recorder


def install(rig: Rig) -> None:
    """For the life of the process; the feed's own records are written too."""
    rig.patches.around(_dataloader._BaseDataLoaderIter, "__next__", lambda original: _timed_draw(rig, original))

    def write(row: dict[str, Any]) -> None:
        rig.samples += row["size"] if row["kind"] == "batch" else 0
        rig.write(row)

    rig.patches.around(DistributedSampler, "set_epoch", lambda original: _noted_epoch(rig, original))
    watcher = Watcher(Recorder(write), lambda source: True)
    watch(watcher)
    rig.patches.on_undo(lambda: unwatch(watcher))
    rig.patches.around(torch.autograd, "backward", lambda original: _counted_backward(rig, original))
    steps = _Steps(rig)
    rig.patches.on_undo(_optimizer.register_optimizer_step_pre_hook(steps.before).remove)
    rig.patches.on_undo(_optimizer.register_optimizer_step_post_hook(steps.after).remove)


def _timed_draw(rig: Rig, original: Callable[..., Any]) -> Callable[..., Any]:
    def __next__(iterator: Any) -> Any:
        start = time.perf_counter()
        try:
            return original(iterator)
        finally:
            rig.data += time.perf_counter() - start

    return __next__


def _noted_epoch(rig: Rig, original: Callable[..., Any]) -> Callable[..., Any]:
    def set_epoch(sampler: Any, epoch: int) -> None:
        rig.write({"kind": "set_epoch", "epoch": epoch})
        original(sampler, epoch)

    return set_epoch


def _counted_backward(rig: Rig, original: Callable[..., Any]) -> Callable[..., Any]:
    depth = 0

    def backward(*args: Any, **kwargs: Any) -> Any:
        nonlocal depth
        depth += 1  # checkpointing runs backward passes within one
        try:
            result = original(*args, **kwargs)
        finally:
            depth -= 1
        if depth == 0:
            rig.backwards += 1
            for call in rig.after_backward:
                call()
        return result

    return backward


class _Steps:
    """Optimizers may step others (shards, wrappers): the outermost step counts, once there were gradients."""

    def __init__(self, rig: Rig) -> None:
        self._rig = rig
        self._outermost: Any = None

    def before(self, optimizer: Any, *_: Any) -> None:
        if self._outermost is None:
            self._outermost = optimizer
            for call in self._rig.before_step:
                call()

    def after(self, optimizer: Any, *_: Any) -> None:
        if self._outermost is not optimizer:
            return
        self._outermost = None
        rig = self._rig
        if not rig.backwards:
            return
        rates = [float(group["lr"]) for group in optimizer.param_groups if "lr" in group]
        seconds = time.perf_counter() - rig.began
        row = {"kind": "step", "step": rig.step, "optimizer": type(optimizer).__name__, "lr": max(rates, default=None)}
        waits = {"data": rig.data, "called": rig.called, "buffers": rig.buffers}
        rig.write({**row, "samples": rig.samples, "seconds": seconds, **waits})
        rig.next_step()
