"""When what is seen step by step is enough to be said: sequential tests, as values.

Page's rule over Wald's: a score is the logarithm of how much likelier the steps since some step are if something is
wrong than if nothing is, and never below 0. In a healthy run the expected number of steps until a score reaches ENOUGH
is at least a million, whatever the distribution of times is: a step only counts as one in which it was so or not.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import log
from statistics import median
from typing import NamedTuple

FAIR_PART = 0.05  # of a step: what costs less is not said
ENOUGH = log(1e6)
_WRONG = 0.9  # how often it is so where something is wrong
_RARELY, _OFTEN = 1 / 3, 1 / 2  # how often it is so by chance: as often as before, within these
_MEMORY = 64  # steps over which that is counted
_FIRST = 8  # steps from which the usual exposed time is taken
_FOLLOWS = 0.0001  # of a step: by how much the usual exposed time can change in one
_TIMES = 2.0  # the usual exposed time


class Score(NamedTuple):
    """usual: how often it has been so, lately."""

    value: float = 0.0
    usual: float = _OFTEN

    def after(self, so: bool) -> Score:
        """One more step, in which it was so or was not."""
        usual = self.usual
        if not so and self.value == 0.0:  # as in nearly every step
            return Score(0.0, usual - usual / _MEMORY)
        chance = _RARELY if usual < _RARELY else _OFTEN if usual > _OFTEN else usual
        value = self.value + (log(_WRONG / chance) if so else log((1 - _WRONG) / (1 - chance)))
        return Score(value if value > 0.0 else 0.0, usual + (so - usual) / _MEMORY)


def delayed(waits: Mapping[int, float]) -> tuple[int, float]:
    """The rank that came last, and how much sooner the step had ended had it come with the one before it."""
    last, next_to_last, *_ = sorted(waits, key=waits.__getitem__)
    return last, waits[next_to_last] - waits[last]


class Lateness(NamedTuple):
    """Whether one rank makes the others wait: a score for each that was ever late, and that of all the others."""

    scores: Mapping[int, Score] = {}
    others: Score = Score()

    def after(self, rank: int, share: float) -> Lateness:
        """One more step, of which the others waited this share for this rank alone."""
        late = share >= FAIR_PART
        scores = {rank: self.others, **self.scores} if late else self.scores
        return Lateness(
            {other: score.after(late and other == rank) for other, score in scores.items()}, self.others.after(False)
        )

    @property
    def found(self) -> int | None:
        """The rank of which enough is known."""
        for rank, score in self.scores.items():
            if score.value >= ENOUGH:
                return rank
        return None


class Exposure(NamedTuple):
    """Whether communication is exposed that used to be hidden. All times are shares of a step.

    usual: its median so far; negative: not known yet. `first`: what it will be taken from.
    """

    score: Score = Score()
    usual: float = -1.0
    first: tuple[float, ...] = ()

    def after(self, exposed: float) -> Exposure:
        """One more step, with so much exposed communication on the rank that waited least."""
        if self.usual < 0:
            first = (*self.first, exposed)
            return Exposure(usual=median(first)) if len(first) == _FIRST else Exposure(first=first)
        lost = exposed > _TIMES * self.usual and exposed - self.usual >= FAIR_PART
        follows = self.usual + (_FOLLOWS if exposed > self.usual else -_FOLLOWS)
        return Exposure(self.score.after(lost), max(0.0, follows))

    @property
    def found(self) -> bool:
        """Whether enough is known."""
        return self.score.value >= ENOUGH
