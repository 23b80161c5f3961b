"""Teams of processes that run candidates, and rounds over them.

Ranks get their orders as lines of JSON, and answer each in time. Every round runs every candidate of a cell once, in
shuffled order; a candidate that fails is left out.
"""

from __future__ import annotations

import json
import os
import queue
import random
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from devices.cell import Cell

END_S = 5.0


class TeamLost(RuntimeError):
    """It cannot go on: a rank has ended, or does not answer; the sentence says why."""


class CandidateFailed(RuntimeError):
    """An error was the answer; the ranks wait for other orders."""


class Team:
    """`commands`: one per rank, each with its variables. They start at once; welcome() waits for them."""

    def __init__(self, name: str, commands: Sequence[Sequence[str]], variables: Sequence[Mapping[str, str]]) -> None:
        self.name, self._words = name, tempfile.TemporaryFile()  # noqa: SIM115 - closed by dismiss()
        self._answers: list[queue.Queue[str]] = []
        self._processes: list[subprocess.Popen[str]] = []
        for command, own in zip(commands, variables, strict=True):
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._words,
                env={**os.environ, **own},
                text=True,
                start_new_session=True,
            )
            lines: queue.Queue[str] = queue.Queue()
            threading.Thread(target=_read, args=(process, lines), daemon=True).start()
            self._processes.append(process)
            self._answers.append(lines)

    def welcome(self, limit_s: float) -> list[str]:
        """The names of its candidates, once all ranks are ready."""
        return self._gather(time.monotonic() + limit_s, "start")[0]["candidates"]

    def ask(self, limit_s: float, do: str, candidate: str, **order: Any) -> list[dict[str, Any]]:
        """All ranks' answers to one order. TeamLost when one has none in time, CandidateFailed when one is an error."""
        line = json.dumps({"do": do, "candidate": candidate, **order}) + "\n"
        try:
            for process in self._processes:
                process.stdin.write(line)  # type: ignore[union-attr]
                process.stdin.flush()  # type: ignore[union-attr]
        except OSError:
            raise TeamLost(f"a rank has ended: {self.last_words()}") from None
        return self._gather(time.monotonic() + limit_s, f"{do} {candidate}")

    def _gather(self, deadline: float, what: str) -> list[dict[str, Any]]:
        found = []
        for rank, lines in enumerate(self._answers):
            try:
                line = lines.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                raise TeamLost(f"rank {rank} did not answer to '{what}' in time; {self.last_words()}".strip()) from None
            if not line:
                raise TeamLost(f"rank {rank} has ended: {self.last_words()}")
            found.append(json.loads(line))
        errors = [answer["error"] for answer in found if "error" in answer]
        if errors:
            raise CandidateFailed(errors[0])
        return found

    def last_words(self) -> str:
        """The last line that any rank has written to stderr."""
        words = self._words.fileno()  # whose offset is the ranks', too: seek() would move where they write
        lines = os.pread(words, os.fstat(words).st_size, 0).decode(errors="replace").strip().splitlines()
        return lines[-1][:300] if lines else ""

    def dismiss(self) -> None:
        """Ends all its processes."""
        for process in self._processes:
            if process.stdin and not process.stdin.closed:
                with suppress(OSError):  # it may have ended
                    process.stdin.close()
        deadline = time.monotonic() + END_S
        for process in self._processes:
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            if process.stdout:
                process.stdout.close()
        self._words.close()


def _read(process: subprocess.Popen[str], lines: queue.Queue[str]) -> None:
    """Puts answers into the queue, and an empty one at the end."""
    try:
        for line in process.stdout or ():
            lines.put(line)
    except ValueError:
        pass  # closed by dismiss()
    lines.put("")


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


class Rounds:
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
