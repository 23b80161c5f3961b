"""Rounds over teams: every round runs every candidate of a cell once, in shuffled order. Who fails is left out."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from devices.cell import Cell
from devices.team import CandidateFailed, Team, TeamLost

MOST_CALLS = 30  # in a row: an all_reduce in place multiplies by the number of ranks, and must stay finite
RUN_S = 0.04  # what the calls of one run are to take together
LEAST_ROUNDS, MOST_ROUNDS = 3, 15
ORDER_S = 25.0  # an order's limit


@dataclass
class Entry:
    """One candidate in one cell: seconds per call by round, in how many calls at a time."""

    candidate: str
    calls: int = 1
    wrong: int = 0
    seconds: list[float] = field(default_factory=list)


@dataclass
class Runner:
    """A candidate and the team that runs it."""

    name: str
    team: Team


def took(answers: Sequence[dict[str, float]], calls: int) -> float:
    """Seconds per call, from the first rank's start to the last one's end."""
    return (max(a["stop"] for a in answers) - min(a["start"] for a in answers)) / calls


class Race:
    """The candidates of one number of ranks. `left_out`: by candidate, why it did not run, or not to the end."""

    def __init__(self, seed: int = 1) -> None:
        self.runners: list[Runner] = []
        self._teams: list[Team] = []
        self.left_out: dict[str, str] = {}
        self._random = random.Random(seed)

    def welcome(self, team: Team, limit_s: float) -> None:
        """Takes a team's candidates in, or leaves the team out."""
        self._teams.append(team)
        try:
            self.runners += [Runner(name, team) for name in team.welcome(limit_s)]
        except (TeamLost, CandidateFailed) as lost:
            self._lose(team, lost)

    def _lose(self, team: Team, lost: RuntimeError) -> None:
        names = [runner.name for runner in self.runners if runner.team is team] or [team.name]
        self.left_out |= {name: str(lost) for name in names}
        self.runners = [runner for runner in self.runners if runner.team is not team]
        self._teams.remove(team)
        team.dismiss()

    def close(self) -> None:
        """Ends all teams."""
        for team in self._teams:
            team.dismiss()
        self.runners, self._teams = [], []

    def measure(self, cell: Cell, names: Sequence[str], seconds: float) -> list[Entry]:
        """Rounds of these candidates until the time is used, at least LEAST_ROUNDS."""
        begin = time.monotonic()
        entries = {runner.name: entry for runner in list(self.runners) if (entry := self._open(runner, cell, names))}
        for number in range(MOST_ROUNDS):
            if number >= LEAST_ROUNDS and time.monotonic() - begin > seconds:
                break
            self._round(entries)
        for runner in list(self.runners):
            if runner.name in entries:
                self._try(runner, "close")
        rounds = max((len(entry.seconds) for entry in entries.values()), default=0)
        return [entry for entry in entries.values() if len(entry.seconds) == rounds > 0]

    def _open(self, runner: Runner, cell: Cell, names: Sequence[str]) -> Entry | None:
        if runner.name not in names or runner not in self.runners:
            return None
        answers = self._try(runner, "open", cell=cell.as_json())
        first = self._try(runner, "run", calls=1) if answers else None
        if not answers or not first:
            return None
        calls = max(1, min(MOST_CALLS, int(RUN_S / max(took(first, 1), 1e-9))))
        warm = self._try(runner, "run", calls=calls)
        return Entry(runner.name, calls, sum(answer["wrong"] for answer in answers)) if warm else None

    def _round(self, entries: dict[str, Entry]) -> None:
        order = [runner for runner in self.runners if runner.name in entries]
        self._random.shuffle(order)
        for runner in order:
            entry = entries[runner.name]
            if runner in self.runners and (answers := self._try(runner, "run", calls=entry.calls)):
                entry.seconds.append(took(answers, entry.calls))

    def _try(self, runner: Runner, do: str, **order: object) -> list[dict] | None:
        try:
            return runner.team.ask(ORDER_S, do, runner.name, **order)
        except CandidateFailed as failed:
            self.left_out[runner.name] = str(failed)
            self.runners.remove(runner)
        except TeamLost as lost:
            self._lose(runner.team, lost)
        return None
