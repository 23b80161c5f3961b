"""How far a rank is, as it tells the others when a world begins."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

_HEAD = 6  # numbers before those of leaves


@dataclass
class Progress:
    """applied: steps; below 0 without a state. seen: steps that any rank of its last world has applied or begun to.

    mean_of: the step of which it has a whole mean that is not applied; -1 without one. first: the step at which its
    program would begin. saved: steps when it was last saved. is_examined: its bits are those of the others. held:
    leaves of step `applied`.
    """

    applied: int
    seen: int
    mean_of: int
    first: int
    saved: int
    is_examined: bool
    held: list[int]

    def numbers(self, micro_batches: int) -> list[int]:
        """As many on every rank; the inverse of of()."""
        held = (int(leaf in self.held) for leaf in range(micro_batches))
        return [self.applied, self.seen, self.mean_of, self.first, self.saved, self.is_examined, *held]

    @classmethod
    def of(cls, numbers: Sequence[int]) -> Progress:
        """The inverse of numbers()."""
        *head, is_examined = numbers[:_HEAD]
        return cls(*head, bool(is_examined), [leaf for leaf, held in enumerate(numbers[_HEAD:]) if held])
