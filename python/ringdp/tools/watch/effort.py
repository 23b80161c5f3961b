"""How much a watch does, so that it stays within its budget whatever a step takes."""

from __future__ import annotations

from ringdp.tools.watch.blocks import MOST_BLOCKS, scattered

_MOST_LEVEL = MOST_BLOCKS.bit_length() - 1
_LEAST_LEVEL = -16
_LITTLE = 0.25  # of the budget: below it twice the work still fits
_NEARLY = 0.75


class Effort:
    """level n: 2**n blocks in every step; level -n: one block in one of 2**n steps.

    Which steps these are follows from their key, so ranks that look at fewer look at some of the others'.
    """

    def __init__(self, budget: float) -> None:
        self._budget = budget
        self._level = 0
        self._spent = self._passed = 0.0

    @property
    def blocks(self) -> int:
        """Of a step that is looked at."""
        return 1 << max(0, self._level)

    def selects(self, key: int) -> bool:
        """Whether the step is looked at."""
        return self._level >= 0 or scattered(key) & ((1 << -self._level) - 1) == 0

    def spent(self, seconds: float) -> None:
        """What the watch itself has computed."""
        self._spent += seconds

    def passed(self, seconds: float) -> None:
        """How long a step was."""
        self._passed += seconds

    def adapt(self) -> None:
        """From what was spent since the last call."""
        share = self._spent / self._passed if self._passed else 0.0
        self._spent = self._passed = 0.0
        if share > _NEARLY * self._budget:
            self._level = max(_LEAST_LEVEL, self._level - 1)
        elif share < _LITTLE * self._budget:
            self._level = min(_MOST_LEVEL, self._level + 1)
