"""Checksums of parameters and gradients around optimizer steps: whether ranks hold, and step with, the same bits.

Record parameters, once per optimizer: optimizer (its number), names, shapes, plain (whether all are plain tensors),
group (by parameter: the ranks of the wrapper that averages its gradient; "" without one), varied (whether its values
differ from one another), made (its checksum when the wrapper was made).
Record replicas, at some of its steps: optimizer, turn (its own count), step, grads, before, after (checksums by
parameter, None where there is nothing to look at), forwards (of a wrapper, since its last step), unsynced (those
within no_sync).
Record share: step, sums: checksums of what each backward pass gave to some parameters, before any averaging.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.optim import optimizer as _optimizer

from ringdp import _native
from ringdp.tools.doctor.evidence import WARM_UP
from ringdp.tools.doctor.probes.context import ProbeContext

_EVERY_STEP = 16 << 20  # bytes of parameters: larger models are looked at when the count of steps has doubled
_SHARE = 8  # parameters, the smallest


def install(context: ProbeContext, steps: int) -> None:
    """steps: how many are watched; the last one is looked at. Before the probe of steps, which ends them."""
    watch = _Watch(context, steps)
    context.patches.around(DistributedDataParallel, "__init__", watch.watched_init)
    context.patches.around(DistributedDataParallel, "forward", watch.counted_forward)
    context.patches.on_undo(_optimizer.register_optimizer_step_pre_hook(watch.before).remove)
    context.patches.on_undo(_optimizer.register_optimizer_step_post_hook(watch.after).remove)


class _Optimizer:
    """What is known of one optimizer; it is held, so that its id stays its own."""

    def __init__(self, number: int, optimizer: Any) -> None:
        self.number = number
        self.optimizer = optimizer
        self.parameters = [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]
        self.plain = all(type(p.data) is torch.Tensor for p in self.parameters)
        self.bytes = sum(p.nbytes for p in self.parameters) if self.plain else 0
        self.turn = 0
        self.row: dict[str, Any] | None = None  # of the step under way, where it is looked at


class _Watch:
    """All optimizers and wrappers of this process."""

    def __init__(self, context: ProbeContext, steps: int) -> None:
        self._context = context
        self._last = steps - 1
        self._known: dict[int, _Optimizer] = {}
        self._wrapped: dict[int, tuple[str, str, int | None]] = {}  # by parameter's id: name, group, checksum
        self._held: list[Any] = []  # parameters of wrappers: their ids stay their own
        self._stepping: Any = None
        self._forwards = self._unsynced = 0
        self._sums: dict[int, int] = {}

    def watched_init(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def __init__(wrapper: Any, *args: Any, **kwargs: Any) -> None:
            original(wrapper, *args, **kwargs)
            sharded = getattr(wrapper, "zero_stage", 0) >= 3
            group = "" if sharded else ",".join(map(str, dist.get_process_group_ranks(wrapper.process_group)))
            ignored = getattr(wrapper, "parameters_to_ignore", set())
            for name, p in wrapper.module.named_parameters():
                self._held.append(p)
                if name in ignored or sharded:
                    self._wrapped[id(p)] = (name, "sharded" if sharded else "ignored", None)
                else:
                    self._wrapped[id(p)] = (name, group, checksum(p))

        return __init__

    def counted_forward(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def forward(wrapper: Any, *args: Any, **kwargs: Any) -> Any:
            if torch.is_grad_enabled() and wrapper.training and not torch.compiler.is_compiling():
                self._forwards += 1
                self._unsynced += not wrapper.require_backward_grad_sync
            return original(wrapper, *args, **kwargs)

        return forward

    def before(self, optimizer: Any, *_: Any) -> None:
        """Of the outermost optimizer: others may be its parts."""
        if self._stepping is not None or not self._context.backwards:
            return
        self._stepping = optimizer
        began = time.perf_counter()
        known = self._known.get(id(optimizer)) or self._add(optimizer)
        if self._is_looked_at(known):
            known.row = {
                "grads": [_gradient(p) for p in known.parameters],
                "before": [checksum(p) for p in known.parameters],
                "forwards": self._forwards,
                "unsynced": self._unsynced,
            }
        self._forwards = self._unsynced = 0
        self._context.began += time.perf_counter() - began

    def after(self, optimizer: Any, *_: Any) -> None:
        """Writes what was looked at."""
        if self._stepping is not optimizer:
            return
        self._stepping = None
        began = time.perf_counter()
        known = self._known[id(optimizer)]
        if known.row is not None:
            place = {"kind": "replicas", "optimizer": known.number, "turn": known.turn, "step": self._context.step}
            self._context.write({**place, **known.row, "after": [checksum(p) for p in known.parameters]})
            known.row = None
        if self._sums:
            self._context.write({"kind": "share", "step": self._context.step, "sums": sorted(self._sums.values())})
            self._sums.clear()
        known.turn += 1
        self._context.began += time.perf_counter() - began

    def _add(self, optimizer: Any) -> _Optimizer:
        known = self._known[id(optimizer)] = _Optimizer(len(self._known), optimizer)
        named = [
            self._wrapped.get(id(p), (f"parameter {number} {list(p.shape)} of {type(optimizer).__name__}", "", None))
            for number, p in enumerate(known.parameters)
        ]
        known.plain &= all(group != "sharded" for _, group, _ in named)
        row = {"kind": "parameters", "optimizer": known.number, "plain": known.plain}
        names, groups, made = (list(column) for column in zip(*named, strict=True)) if named else ([], [], [])
        shapes = [list(p.shape) for p in known.parameters]
        varied = [known.plain and _is_varied(p) for p in known.parameters]
        self._context.write({**row, "names": names, "group": groups, "made": made, "shapes": shapes, "varied": varied})
        if known.plain:
            for p in sorted(known.parameters, key=torch.Tensor.numel)[:_SHARE]:
                p.register_hook(partial(self._note, id(p)))
        return known

    def _is_looked_at(self, known: _Optimizer) -> bool:
        doubled = known.turn & (known.turn + 1) == 0  # turns 0, 1, 3, 7: steps 1, 2, 4, 8
        return known.plain and (known.bytes <= _EVERY_STEP or doubled or self._context.step == self._last)

    def _note(self, key: int, gradient: torch.Tensor) -> None:
        """In early steps only: of a device's gradient it waits for the device."""
        if self._context.step < WARM_UP and gradient.layout is torch.strided and bool(gradient.any()):
            self._sums[key] = self._sums.get(key, 0) * 31 + (checksum(gradient) or 0) & (1 << 64) - 1


def checksum(tensor: torch.Tensor) -> int | None:
    """Of its bits; None where they cannot be had, as of memory that was freed."""
    try:
        return _native.load().checksum(tensor.detach().cpu().contiguous())
    except (RuntimeError, TypeError):
        return None


def _gradient(parameter: torch.Tensor) -> int | None:
    return None if parameter.grad is None else checksum(parameter.grad)


def _is_varied(parameter: torch.Tensor) -> bool:
    flat = parameter.detach().reshape(-1)
    return bool((flat != flat[:1]).any())
