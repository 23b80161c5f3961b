"""Gathers units before the forward and the backward pass of the modules that need them, and frees them after it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch._compile import _disable_dynamo
from torch.autograd import Variable
from torch.nn.parallel.distributed import _find_tensors

from ringdp import _native
from ringdp.zero.gathers import Schedule
from ringdp.zero.refusals import refuse_copy
from ringdp.zero.unit_storage import UnitStorage

_C = _native.load()
_NO_TASK = -1
Units = tuple[UnitStorage, ...]


class UnitHooks:
    """On the modules of one model."""

    __reduce_ex__ = refuse_copy

    def __init__(
        self, needed_by: Mapping[nn.Module, Sequence[UnitStorage]], schedule: Schedule, end_of_pass: Callable[[], None]
    ) -> None:
        self._schedule, self._end_of_pass = schedule, end_of_pass
        self._calls: list[tuple[nn.Module, int]] = []  # that run: with the first node of the graph that each may make
        self._passes: dict[int, list[Units]] = {}  # backward passes that run, inner ones too: what each holds
        for module, units in needed_by.items():
            module.register_forward_pre_hook(functools.partial(self._before, tuple(units)), prepend=True)
            module.register_forward_hook(functools.partial(self._after, tuple(units)), always_call=True)

    def begin_forward(self) -> None:
        """The model is called: whatever an earlier pass has left behind is dropped."""
        if _task() == _NO_TASK:
            self._calls.clear()
            self._passes.clear()
            self._schedule.begin(backward=False)

    @property
    def idle(self) -> bool:
        """Whether no pass runs on this thread."""
        return _task() == _NO_TASK and not self._calls

    def drop_leftovers(self) -> None:
        """Outside of any pass: units that a pass has left gathered (one that was broken off, or went another way)."""
        if self.idle:
            self.begin_forward()

    @_disable_dynamo
    def _before(self, units: Units, module: nn.Module, _: object) -> None:
        self._note_backward()
        for unit in units:
            self._schedule.acquire(unit)
        self._calls.append((module, _C.next_node()))

    @_disable_dynamo
    def _after(self, units: Units, module: nn.Module, _: object, output: Any) -> None:
        since = self._since(module)
        if since is None:
            return  # the call did not get as far as gathering
        if torch.is_grad_enabled():
            outputs = [t for t in _find_tensors(output) if t.requires_grad]
            _C.watch_backward(
                outputs, since, functools.partial(self._enter, units), functools.partial(self._leave, units)
            )
        recomputed = _task() != _NO_TASK and torch.is_grad_enabled()
        for unit in units:
            self._schedule.release(unit, linger=recomputed)

    def _since(self, module: nn.Module) -> int | None:
        """Takes this call, and those inside that have not ended, off the stack."""
        if all(running is not module for running, _ in self._calls):
            return None
        while True:
            running, since = self._calls.pop()
            if running is module:
                return since

    def _enter(self, units: Units) -> None:
        self._note_backward()
        self._passes[_task()].append(units)
        for unit in units:
            self._schedule.acquire(unit)

    def _leave(self, units: Units) -> None:
        held = self._passes.get(_task(), [])
        if units in held:
            held.remove(units)
            for unit in units:
                self._schedule.release(unit)

    def _note_backward(self) -> None:
        """Sees to it that what a backward pass holds is released when it ends."""
        task = _task()
        if task == _NO_TASK or task in self._passes:
            return
        if not self._passes:
            self._schedule.begin(backward=True)
        self._passes[task] = []
        Variable._execution_engine.queue_callback(functools.partial(self._end_of_backward, task))

    def _end_of_backward(self, task: int) -> None:
        for units in self._passes.pop(task, []):
            for unit in units:
                self._schedule.release(unit)
        if not self._passes:
            self._end_of_pass()
            self._schedule.end()


def _task() -> int:
    """Which backward pass runs on this thread; -1: none."""
    return torch._C._current_graph_task_id()
