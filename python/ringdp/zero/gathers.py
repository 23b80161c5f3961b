"""When units are gathered and freed: in use, on their way ahead of use, or not there."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from ringdp.text.units import counted
from ringdp.zero.unit_storage import UnitStorage


@dataclass(frozen=True)
class PassGathers:
    """One forward or backward pass on this rank. Print it.

    order: names of units as they were needed; several times where they were. ahead: how many of them were on their way
    by then. bytes: received from other ranks. exposed: seconds of waiting, while nothing was computed.
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
    """What the running pass has needed so far, and where that is in the order of the pass before."""

    def __init__(self, expected: Sequence[int]) -> None:
        self.order: list[int] = []
        self.ahead = self.bytes = self._place = 0
        self.exposed = 0.0
        self._expected = expected

    def next_after(self, unit: int) -> int | None:
        """What will be needed after this unit, which is needed now; None where nobody knows."""
        self.order.append(unit)
        try:
            self._place = self._expected.index(unit, self._place) + 1
        except ValueError:
            return None
        return self._expected[self._place] if self._place < len(self._expected) else None


class Schedule:
    """Of all units of a model. Callers come in the same order on all ranks, so gathers do.

    There are those in use, at most one on its way ahead of use, and at most one that lingers: recomputed in a backward
    pass, and about to be needed by it.
    """

    def __init__(self, units: Sequence[UnitStorage], ranks: int, prefetch: bool) -> None:
        self._units, self._prefetch = list(units), prefetch
        self._received = (ranks - 1) / ranks
        self._ahead: UnitStorage | None = None
        self._lingering: UnitStorage | None = None
        self._expected: dict[bool, list[int]] = {}
        self._backward = False
        self._pass = _Pass(())
        self._latest = {False: PassGathers(), True: PassGathers()}

    def acquire(self, unit: UnitStorage) -> None:
        """Gathers it, unless it is there; it stays until it is released as often."""
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
        """Frees it when nobody else needs it. `linger`: when another one is needed."""
        unit.holders -= 1
        if unit.holders > 0:
            return
        if linger:
            self._drop_linger()
            self._lingering = unit
        else:
            unit.free()

    def pin(self, unit: UnitStorage) -> None:
        """Gathers it outside of any pass."""
        unit.pins += 1
        unit.holders += 1
        if not unit.has_memory:
            unit.start()
        unit.wait()

    def unpin(self, unit: UnitStorage) -> None:
        """Ends that."""
        unit.pins -= 1
        self.release(unit)

    def begin(self, *, backward: bool) -> None:
        """A pass begins, and the one before has ended. Nothing is held then, but by a pass that was broken off."""
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
        """What was on its way in vain is freed; the order is that of the next such pass."""
        self._drop_linger()
        self._drop_ahead()
        if self._pass.order:
            self._expected[self._backward] = self._pass.order
            self._latest[self._backward] = self._facts()
            self._pass = _Pass(())

    def running_order(self) -> list[int]:
        """Units that the running pass has needed, so far."""
        return list(self._pass.order)

    def latest(self) -> Gathered:
        """Facts of the latest passes."""
        return Gathered(self._latest[False], self._latest[True])

    def _facts(self) -> PassGathers:
        now = self._pass
        return PassGathers(tuple(self._units[n].name for n in now.order), now.ahead, now.bytes, now.exposed)

    def _start(self, unit: UnitStorage) -> None:
        if not unit.has_memory:
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
