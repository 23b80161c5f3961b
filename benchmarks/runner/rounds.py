"""The rounds of a session: every candidate once per round, in shuffled order, until there are enough of them."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from runner.cell import Cell
from runner.coordinator import Coordinator, Team, TeamLost
from runner.worker import CLOSE, OPEN, RUN, Order

WARM_UP = 2  # rounds that make connections and touch pages
Refusal = Callable[[str, Cell], str]


@dataclass(frozen=True)
class Length:
    """How long a cell runs: at least `least` rounds, then until `seconds` are over, at most `most`."""

    least: int = 5
    most: int = 200
    seconds: float = 1.0


@dataclass
class Entry:
    """A candidate in one cell: its times in seconds by round, and the wrong elements of all rounds."""

    candidate: str
    team: Team
    index: int
    times: list[float] = field(default_factory=list)
    wrong: int = 0


def entries_of(teams: list[Team], cell: Cell, refusal: Refusal) -> list[Entry]:
    """The candidates that take part."""
    return [
        Entry(name, team, index)
        for team in teams
        for index, name in enumerate(team.hello["candidates"])
        if not refusal(name, cell)
    ]


class CellRun:
    """One cell: the candidates that take part, and those that were lost on the way."""

    def __init__(self, coordinator: Coordinator, number: int, refusal: Refusal) -> None:
        self._coordinator, self._number = coordinator, number
        self.cell = coordinator.cells[number]
        self.entries = entries_of(coordinator.teams, self.cell, refusal)
        self.lost: dict[str, str] = {}
        self._chance = random.Random(f"{self.cell}")

    def run(self, length: Length) -> None:
        """All rounds. A lost team is dismissed and named in `lost`; TeamLost when it is the first."""
        for entry in list(self.entries):
            self._order(entry, Order(OPEN, self._number, entry.index))
        begin, turn = time.monotonic(), -WARM_UP
        while not _is_enough(turn, time.monotonic() - begin, length):
            self._round(turn)
            turn += 1
            if turn == 0:
                begin = time.monotonic()
        for team in self._coordinator.teams:
            self._coordinator.turn(team, Order(CLOSE, self._number))

    def _round(self, turn: int) -> None:
        root = max(turn, 0) % self.cell.ranks
        for entry in self._chance.sample(self.entries, len(self.entries)):
            result = self._order(entry, Order(RUN, self._number, entry.index, turn, root))
            if result and turn >= 0:
                entry.times.append(result[0])
            entry.wrong += result[1] if result else 0

    def _order(self, entry: Entry, order: Order) -> tuple[float, int] | None:
        """Nothing when its team is not there any more."""
        if entry.team not in self._coordinator.teams:
            return None
        try:
            return self._coordinator.turn(entry.team, order)
        except TeamLost as reason:
            if entry.team is self._coordinator.teams[0]:
                raise
            self.lost[entry.candidate] = str(reason)
            self._coordinator.dismiss(entry.team)
            self.entries = [other for other in self.entries if other.team is not entry.team]
            return None


def _is_enough(turn: int, seconds: float, length: Length) -> bool:
    return turn >= length.most or (turn >= length.least and seconds > length.seconds)
