"""When units are gathered and freed: the prefetch schedule of a pass, and the module hooks that drive it."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch._compile import _disable_dynamo
from torch.autograd import Variable
from torch.nn.parallel.distributed import _find_tensors

from ringdp import _native
from ringdp.text.units import counted
from ringdp.zero.refusals import refuse_copy
from ringdp.zero.unit_storage import UnitStorage


@dataclass(frozen=True)
class PassGathers:
    """One forward or backward pass on this rank. Print it.

    order: names of units in the order of use, with repetitions. ahead: how many of these had been prefetched. bytes:
    of other ranks' parts. exposed: seconds of waiting, while nothing was computed.
    """

    order: tuple[str, ...] = ()
    ahead: int = 0
    bytes: int = 0
    exposed: float = 0.0

    def __str__(self) -> str:
        units = ", ".join(self.order) or "nothing"
        return (
            f"{counted(len(self.order), 'gather')}, {self.ahead} ahead of use, {self.bytes:,} bytes received, "
            f"{1e3 * self.exposed:.2f} ms exposed: {units}"
        )


@dataclass(frozen=True)
class Gathered:
    """The latest forward pass and the latest backward pass."""

    forward: PassGathers = field(default_factory=PassGathers)
    backward: PassGathers = field(default_factory=PassGathers)

    @property
    def exposed(self) -> float:
        """Seconds of waiting in both."""
        return self.forward.exposed + self.backward.exposed

    def __str__(self) -> str:
        return f"forward: {self.forward}\nbackward: {self.backward}"


class _Pass:
    """The units that the running pass has used so far, and its position in the expected order."""

    def __init__(self, expected: Sequence[int]) -> None:
        self.order: list[int] = []
        self.ahead = self.bytes = self._place = 0
        self.exposed = 0.0
        self._expected = expected

    def next_after(self, unit: int) -> int | None:
        """Notes that `unit` is used now; returns the unit expected next, or None if that is unknown."""
        self.order.append(unit)
        try:
            self._place = self._expected.index(unit, self._place) + 1
        except ValueError:
            return None
        return self._expected[self._place] if self._place < len(self._expected) else None


class PrefetchSchedule:
    """Gathers and frees the units of a model. All ranks must call it in the same order.

    before_gather: called with a unit's number before its gather of a pass is started.

    Units in use have memory. In addition at most one unit is prefetched, and at most one lingers: it was recomputed
    (activation checkpointing), and its backward pass follows.
    """

    def __init__(
        self, units: Sequence[UnitStorage], ranks: int, prefetch: bool, before_gather: Callable[[int], None]
    ) -> None:
        self._units, self._prefetch, self._before_gather = list(units), prefetch, before_gather
        self._received = (ranks - 1) / ranks
        self._ahead: UnitStorage | None = None
        self._lingering: UnitStorage | None = None
        self._expected: dict[bool, list[int]] = {}
        self._backward = False
        self._pass = _Pass(())
        self._latest = {False: PassGathers(), True: PassGathers()}

    def regroup(self, ranks: int, before_gather: Callable[[int], None]) -> None:
        """In another group, where no unit has memory."""
        self._received, self._before_gather = (ranks - 1) / ranks, before_gather
        self._ahead = self._lingering = None
        self._expected.clear()
        self._backward, self._pass = False, _Pass(())

    def acquire(self, unit: UnitStorage) -> None:
        """Gathers the unit if it is not gathered; it stays until it has been released as often as acquired."""
        unit.holders += 1
        if unit is self._lingering:
            self._lingering = None
            return
        if unit.holders > 1:
            return
        self._drop_linger()
        if self._ahead is not unit:
            self._drop_ahead()
        self._pass.ahead += unit.has_memory
        self._ahead = None
        began = time.perf_counter()
        self._start(unit)
        unit.wait()
        self._pass.exposed += time.perf_counter() - began
        following = self._pass.next_after(unit.number)
        if self._prefetch and following is not None and not self._units[following].has_memory:
            self._ahead = self._units[following]
            self._start(self._ahead)

    def release(self, unit: UnitStorage, *, linger: bool = False) -> None:
        """Frees the unit at its last release; with `linger`, only when another unit is acquired."""
        unit.holders -= 1
        if unit.holders > 0:
            return
        if linger:
            self._drop_linger()
            self._lingering = unit
        else:
            unit.free()

    def written(self, units: Sequence[UnitStorage]) -> list[str]:
        """Names of parameters that were written since their units were gathered."""
        return [name for unit in units for name in unit.written()]

    def pin(self, unit: UnitStorage) -> None:
        """Gathers a unit outside of any pass, until unpin()."""
        unit.pins += 1
        unit.holders += 1
        self._ahead = None if unit is self._ahead else self._ahead  # it is freed with its last pin now
        self._lingering = None if unit is self._lingering else self._lingering
        unit.own_memory()

    def unpin(self, unit: UnitStorage) -> None:
        """Ends a pin."""
        unit.pins -= 1
        self.release(unit)

    def begin(self, *, backward: bool) -> None:
        """Begins a pass, after the previous one has ended. Frees what an interrupted pass still holds."""
        self.end()
        for unit in self._units if not backward else ():
            unit.holders = unit.pins
            if not unit.holders:
                unit.free()
        self._backward = backward
        known = self._expected.get(backward)
        if known is None and backward:
            known = self._expected.get(False, [])[::-1]
        self._pass = _Pass(known or ())

    def end(self) -> None:
        """Ends a pass: frees units that were not used, and expects the same order in the next pass of this kind."""
        self._drop_linger()
        self._drop_ahead()
        if self._pass.order:
            self._expected[self._backward] = self._pass.order
            self._latest[self._backward] = self._facts()
            self._pass = _Pass(())

    def expect(self, order: list[int], *, backward: bool) -> None:
        """The next pass of this kind will use the units in this order, as one of other ranks has."""
        if order:
            self._expected[backward] = order

    def running_order(self) -> list[int]:
        """Numbers of the units that the running pass has used so far."""
        return list(self._pass.order)

    def latest(self) -> Gathered:
        """The latest forward and backward pass."""
        return Gathered(self._latest[False], self._latest[True])

    def _facts(self) -> PassGathers:
        now = self._pass
        return PassGathers(tuple(self._units[n].name for n in now.order), now.ahead, now.bytes, now.exposed)

    def _start(self, unit: UnitStorage) -> None:
        if not unit.has_memory:
            self._before_gather(unit.number)
            unit.start()
            self._pass.bytes += int(unit.nbytes * self._received)

    def _drop_ahead(self) -> None:
        unit, self._ahead = self._ahead, None
        if unit is not None:
            unit.free()

    def _drop_linger(self) -> None:
        unit, self._lingering = self._lingering, None
        if unit is not None and unit.holders == 0:
            unit.free()


_C = _native.load()
_NO_TASK = -1
Units = tuple[UnitStorage, ...]


class UnitHooks:
    """Forward and backward hooks on the modules of one model, which acquire and release units."""

    __reduce_ex__ = refuse_copy

    def __init__(
        self,
        needed_by: Mapping[nn.Module, Sequence[UnitStorage]],
        schedule: PrefetchSchedule,
        begin_backward: Callable[[], None],
        end_of_pass: Callable[[], None],
    ) -> None:
        self._schedule, self._begin_backward, self._end_of_pass = schedule, begin_backward, end_of_pass
        self._calls: list[tuple[nn.Module, int]] = []  # running calls, each with the number of its first autograd node
        self._passes: dict[
            int, list[Units]
        ] = {}  # running backward passes, nested ones included: the units that each holds
        for module, units in needed_by.items():
            module.register_forward_pre_hook(functools.partial(self._before, tuple(units)), prepend=True)
            module.register_forward_hook(functools.partial(self._after, tuple(units)), always_call=True)

    def begin_forward(self) -> None:
        """Call before the model is called: drops what an earlier pass has left."""
        if _task() == _NO_TASK:
            self.forget()
            self._schedule.begin(backward=False)

    def forget(self) -> None:
        """Drops what an interrupted pass has left, without the schedule."""
        self._calls.clear()
        self._passes.clear()

    @property
    def idle(self) -> bool:
        """Whether no pass runs on this thread."""
        return _task() == _NO_TASK and not self._calls

    def drop_leftovers(self) -> None:
        """Outside of any pass: frees units that an interrupted pass has left gathered."""
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
            return  # the call failed before it gathered
        if torch.is_grad_enabled():
            outputs = [t for t in _find_tensors(output) if t.requires_grad]
            _C.watch_backward(
                outputs, since, functools.partial(self._enter, units), functools.partial(self._leave, units)
            )
        recomputed = _task() != _NO_TASK and torch.is_grad_enabled()
        written = self._schedule.written(units)
        for unit in units:
            self._schedule.release(unit, linger=recomputed)
        if written:
            raise RuntimeError(
                f"DistributedDataParallel: parameter {written[0]} was written in a forward pass (zero_stage=3), where "
                "it is gathered to be read: the value would be lost. Write inside `with "
                "ddp.gathered(writes=True):`, or use zero_stage=2"
            )

    def _since(self, module: nn.Module) -> int | None:
        """Pops this call, and calls inside it that have not ended, off the stack; None if it is not there."""
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
        """At the first use in a backward pass: registers a callback that releases what it still holds at its end."""
        task = _task()
        if task == _NO_TASK or task in self._passes:
            return
        if not self._passes:
            self._begin_backward()
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


def in_backward() -> bool:
    """Whether a backward pass runs on this thread."""
    return _task() != _NO_TASK


def _task() -> int:
    """The id of the backward pass that runs on this thread; -1: none."""
    return torch._C._current_graph_task_id()
