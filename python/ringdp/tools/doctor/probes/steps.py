"""Per optimizer step: learning rate, samples, and seconds in all and in what may wait for others.

Records: those of the feed; set_epoch (epoch: what a DistributedSampler was told);
step: step, optimizer, lr, samples, seconds, data (in loaders), called (in collectives), buffers (in broadcasts),
backwards (passes: micro-batches).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from torch.optim import optimizer as _optimizer
from torch.utils.data import DistributedSampler
from torch.utils.data import dataloader as _dataloader

from ringdp.tools.doctor.probes.context import ProbeContext
from ringdp.tools.feed.hooks import Watcher, unwatch, watch
from ringdp.tools.feed.recorder import Recorder


def install(context: ProbeContext) -> None:
    """Watches until the process ends; the records of the data feed are written, too."""
    context.patches.around(_dataloader._BaseDataLoaderIter, "__next__", lambda original: _timed_draw(context, original))

    def write(row: dict[str, Any]) -> None:
        context.samples += row["size"] if row["kind"] == "batch" else 0
        context.write(row)

    context.patches.around(DistributedSampler, "set_epoch", lambda original: _noted_epoch(context, original))
    watcher = Watcher(Recorder(write), lambda source: True)
    watch(watcher)
    context.patches.on_undo(lambda: unwatch(watcher))
    context.patches.around(torch.autograd, "backward", lambda original: _counted_backward(context, original))
    steps = _Steps(context)
    context.patches.on_undo(_optimizer.register_optimizer_step_pre_hook(steps.before).remove)
    context.patches.on_undo(_optimizer.register_optimizer_step_post_hook(steps.after).remove)


def _timed_draw(context: ProbeContext, original: Callable[..., Any]) -> Callable[..., Any]:
    def __next__(iterator: Any) -> Any:
        start = time.perf_counter()
        try:
            return original(iterator)
        finally:
            context.data += time.perf_counter() - start

    return __next__


def _noted_epoch(context: ProbeContext, original: Callable[..., Any]) -> Callable[..., Any]:
    def set_epoch(sampler: Any, epoch: int) -> None:
        context.write({"kind": "set_epoch", "epoch": epoch})
        original(sampler, epoch)

    return set_epoch


def _counted_backward(context: ProbeContext, original: Callable[..., Any]) -> Callable[..., Any]:
    depth = 0

    def backward(*args: Any, **kwargs: Any) -> Any:
        nonlocal depth
        depth += 1  # checkpointing runs backward passes within one
        try:
            result = original(*args, **kwargs)
        finally:
            depth -= 1
        if depth == 0:
            context.backwards += 1
            for call in context.after_backward:
                call()
        return result

    return backward


class _Steps:
    """Optimizers may step others (shards, wrappers): the outermost step counts, once there were gradients."""

    def __init__(self, context: ProbeContext) -> None:
        self._context = context
        self._outermost: Any = None

    def before(self, optimizer: Any, *_: Any) -> None:
        if self._outermost is None:
            self._outermost = optimizer
            for call in self._context.before_step:
                call()

    def after(self, optimizer: Any, *_: Any) -> None:
        if self._outermost is not optimizer:
            return
        self._outermost = None
        context = self._context
        if not context.backwards:
            return
        rates = [float(group["lr"]) for group in optimizer.param_groups if "lr" in group]
        seconds = time.perf_counter() - context.began
        row = {
            "kind": "step",
            "step": context.step,
            "optimizer": type(optimizer).__name__,
            "lr": max(rates, default=None),
        }
        waits = {"data": context.data, "called": context.called, "buffers": context.buffers}
        counts = {"samples": context.samples, "backwards": context.backwards}
        context.write({**row, **counts, "seconds": seconds, **waits})
        context.next_step()
