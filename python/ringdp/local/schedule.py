"""When the fragments of a model leave for the outer step and arrive from it: a value, the same on all ranks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from ringdp.text.units import counted


class Event(NamedTuple):
    """After step `step` (1 is the first) a fragment "leaves" with what workers have walked, or "arrives" summed."""

    step: int
    what: str
    fragment: int


@dataclass(frozen=True)
class Schedule:
    """After the first `start` steps, which are synchronous, each fragment leaves every `every` steps.

    They take turns, evenly spread, the last one at the end of each `every` steps. What leaves arrives `delay` steps
    later (0: at once), which is overlap: Streaming DiLoCo, arXiv 2501.18512. Print it.
    """

    every: int
    fragments: int = 1
    delay: int = 0
    start: int = 0

    def is_synchronous(self, step: int) -> bool:
        """Whether all workers make this step with the mean gradient."""
        return step <= self.start

    def leaving(self, step: int) -> int | None:
        """The fragment that leaves after this step."""
        alone = step - self.start
        if alone <= 0:
            return None
        place = (alone - 1) % self.every + 1
        return next((n for n in range(self.fragments) if self._place(n) == place), None)

    def halfway(self, step: int) -> int | None:
        """The fragment whose sums are there: its means set out for the second half of the way."""
        return self.leaving(step - (self.delay + 1) // 2)

    def arriving(self, step: int) -> int | None:
        """The fragment that arrives after this step."""
        return self.leaving(step - self.delay)

    def ends_round(self, step: int) -> bool:
        """Whether every fragment has left since the latest such step; buffers are exchanged then."""
        return step > 0 and (step <= self.start or (step - self.start) % self.every == 0)

    def on_the_way(self, step: int) -> dict[int, int]:
        """The fragments that have left and not arrived after this step, with the steps after which they left."""
        left = ((self.leaving(s), s) for s in range(step - self.delay + 1, step + 1))
        return {fragment: s for fragment, s in left if fragment is not None}

    def events(self, first: int, last: int) -> Iterator[Event]:
        """In their order, after the steps first..last."""
        for step in range(first, last + 1):
            for what, fragment in (("leaves", self.leaving(step)), ("arrives", self.arriving(step))):
                if fragment is not None:
                    yield Event(step, what, fragment)

    def _place(self, fragment: int) -> int:
        """Of its leaving, among the `every` steps: 1 is after the first."""
        return (fragment + 1) * self.every // self.fragments

    def __str__(self) -> str:
        lines = [f"steps 1 to {self.start}: synchronous"] if self.start else []
        for fragment in range(self.fragments):
            left = self.start + self._place(fragment)
            after = ", ".join(str(left + number * self.every) for number in range(3))
            how = f"arrives {counted(self.delay, 'step')} later" if self.delay else "arrives at once"
            lines.append(f"fragment {fragment}: leaves after steps {after}, ...; {how}")
        return "\n".join(lines)
