"""DistributedDataParallel, torch's and ringdp's: where its steps' time goes, and which parameters had no gradient.

Records: model (bytes of gradients, buckets), ddp (per step, in seconds), unused (names by step).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from torch.nn.parallel import DistributedDataParallel

from ringdp.tools.doctor.probes.context import ProbeContext

_TIMES = {
    "forward": "forward_compute_time",
    "backward": "backward_compute_time",
    "communication": "backward_comm_time",
    "overlap": "backward_compute_comm_overlap_time",
}
_NS = 1e-9
_LAID_OUT_ANEW = 2  # the step by which buckets have their final layout


def install(context: ProbeContext) -> None:
    """Watches every wrapper that is created from now on."""
    context.patches.around(DistributedDataParallel, "__init__", lambda original: _watched_init(context, original))
    context.patches.around(DistributedDataParallel, "_sync_buffers", lambda original: _timed_buffers(context, original))


def _watched_init(context: ProbeContext, original: Callable[..., Any]) -> Callable[..., Any]:
    def __init__(wrapper: Any, *args: Any, **kwargs: Any) -> None:
        original(wrapper, *args, **kwargs)
        _Watch(context, wrapper)

    return __init__


def _timed_buffers(context: ProbeContext, original: Callable[..., Any]) -> Callable[..., Any]:
    """Ranks wait for rank 0 there, and the wrapper's own figures call that its forward pass."""

    def _sync_buffers(wrapper: Any) -> None:
        start = time.perf_counter()
        original(wrapper)
        context.buffers += time.perf_counter() - start

    return _sync_buffers


class _Watch:
    """Watches one wrapper."""

    def __init__(self, context: ProbeContext, wrapper: Any) -> None:
        self._context = context
        self._wrapper = wrapper
        self._arrived: set[str] = set()
        self._names: list[str] = []
        wrapper._set_ddp_runtime_logging_sample_rate(1)
        if getattr(wrapper, "zero_stage", 0) < 3:  # stage 3 has no gradients of whole parameters
            self._watch_gradients()
        context.before_step.append(self._times)

    def _watch_gradients(self) -> None:
        ignored = getattr(self._wrapper, "parameters_to_ignore", set())
        for name, parameter in self._wrapper.module.named_parameters():
            if parameter.requires_grad and name not in ignored:
                self._names.append(name)
                parameter.register_hook(lambda gradient, name=name: self._arrived.add(name))
        self._context.after_backward.append(self._unused)

    def _unused(self) -> None:
        missing = [name for name in self._names if name not in self._arrived]
        self._arrived.clear()
        if len(missing) < len(self._names):  # else the pass was of another model
            self._context.write({"kind": "unused", "step": self._context.step, "names": missing})

    def _times(self) -> None:
        """The figures of the previous step: torch's class records them when the next forward pass begins."""
        data = self._wrapper._get_ddp_logging_data()
        if self._context.step == _LAID_OUT_ANEW:
            listed = data.get("rebuilt_bucket_sizes") or data.get("bucket_sizes", "")
            sizes = [int(size) for size in listed.split(", ") if size]
            self._context.write({"kind": "model", "bytes": sum(sizes), "buckets": len(sizes)})
        if "backward_comm_time" in data:
            seconds = {name: data.get(key, 0) * _NS for name, key in _TIMES.items()}
            self._context.write({"kind": "ddp", "step": self._context.step - 1, **seconds})
