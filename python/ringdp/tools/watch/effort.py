"""How much a watch does, so that it stays within its budget whatever a step takes."""

from __future__ import annotations

from ringdp.tools.watch.blocks import LANES

_LEAST_LEVEL = -16
_FIRST_LEVEL = 3
_LITTLE = 0.4  # of the budget: below it twice the work still fits
_NEARLY = 0.95


class Effort:
    """level n: 2**n blocks at a look; level -n: one, and only one of 2**n steps and looks.

    budget: part of the time. blocks: how many a look has at most, a power of two.
    """

    def __init__(self, budget: float, blocks: int = LANES) -> None:
        self._budget = budget
        self._most = blocks.bit_length() - 1
        self._level = min(_FIRST_LEVEL, self._most)
        self._before: tuple[float, float] | None = None

    @property
    def blocks(self) -> int:
        """Of a look."""
        return 1 << max(0, self._level)

    @property
    def stride(self) -> int:
        """Of so many steps one is looked at: those whose number it divides, so ranks that do less do some of them."""
        return 1 << max(0, -self._level)

    def adapt(self, spent: float, passed: float) -> None:
        """To the seconds that the watch has computed in all, and that have passed, since the last call."""
        before, self._before = self._before, (spent, passed)
        if before is None or passed <= before[1]:  # the first report also connects
            return
        share = (spent - before[0]) / (passed - before[1])
        if share > _NEARLY * self._budget:
            self._level = max(_LEAST_LEVEL, self._level - 1)
        elif share < _LITTLE * self._budget:
            self._level = min(self._most, self._level + 1)
