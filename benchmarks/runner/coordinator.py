"""Starts the teams of a session, gives one of them the turn at a time, and notices which has died."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Mapping as Variables
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from runner.cell import Cell
from runner.native import Mapping, load_native
from runner.worker import STOP, Order

START_S, TURN_S, STOP_S = 120.0, 120.0, 10.0
TICK_MS = 200


class TeamLost(Exception):
    """A team has died or is silent; the text says which and what its log ends with."""


@dataclass
class Team:
    """The processes of one launcher, and what rank 0 of them said."""

    name: str
    number: int
    ranks: int
    log: Path
    settings: str = ""
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)
    hello: dict[str, Any] = field(default_factory=dict)

    def start(self, commands: list[list[str]], variables: list[Variables[str, str]]) -> None:
        """One process per command, each in a session of its own, so that all of its children end with it."""
        with self.log.open("wb") as log:
            for command, environment in zip(commands, variables, strict=True):
                self.processes.append(
                    subprocess.Popen(
                        command,
                        env={**os.environ, **environment},
                        stdin=subprocess.DEVNULL,
                        stdout=log,
                        stderr=subprocess.STDOUT,
                        start_new_session=True,
                    )
                )

    def last_words(self) -> str:
        """The end of the log."""
        lines = [line.strip() for line in self.log.read_text(errors="replace").splitlines() if line.strip()]
        return " | ".join(lines[-3:])[-500:] or "no words"

    def check(self) -> None:
        """TeamLost when a process has ended."""
        for process in self.processes:
            if process.poll() is not None:
                raise TeamLost(f"{self.name} ended with status {process.returncode}: {self.last_words()}")

    def end(self, patience_s: float) -> None:
        """All processes of the team and their children, by force after `patience_s`."""
        family = descendants([process.pid for process in self.processes])
        deadline = time.monotonic() + patience_s
        for process in self.processes:
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(0.05, deadline - time.monotonic()))
        for pid in family:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for process in self.processes:
            process.wait()


def descendants(pids: list[int]) -> list[int]:
    """These processes and all that came from them: launchers put ranks into sessions of their own."""
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with suppress(OSError):
                stat = Path(f"/proc/{entry}/stat").read_text()
                children.setdefault(int(stat.rpartition(")")[2].split()[1]), []).append(int(entry))
    found = list(pids)
    for pid in found:  # grows while it is read
        found += children.get(pid, [])
    return found


class Coordinator:
    """`folder` holds job.json, the library and the logs; ranks learn all else from there."""

    def __init__(self, folder: Path, job: dict[str, Any], cells: list[Cell]) -> None:
        self.folder, self.cells = folder, cells
        (folder / "job.json").write_text(json.dumps({**job, "cells": [asdict(cell) for cell in cells]}))
        self._native = load_native(Path(job["library"]))
        self._mapping = Mapping(job["block"])
        self._block = self._mapping.block()
        self.teams: list[Team] = []

    def add(
        self, name: str, number: int, ranks: int, commands: list[list[str]], variables: list[Variables[str, str]]
    ) -> Team:
        """Starts a team and waits until all of it is there; TeamLost when it does not come."""
        team = Team(name, number, ranks, self.folder / f"log-{number}")
        self.teams.append(team)
        team.start(commands, variables)
        hello = self.folder / f"hello-{number}.json"
        deadline = time.monotonic() + START_S
        while not hello.exists():
            team.check()
            if time.monotonic() > deadline:
                raise TeamLost(f"{name} did not start within {START_S:.0f} s: {team.last_words()}")
            time.sleep(0.02)
        team.hello = json.loads(hello.read_text())
        return team

    def turn(self, team: Team, order: Order) -> tuple[float, int]:
        """Lets the team do it: seconds from the first start to the last end, and wrong elements, over its ranks."""
        self._block.order[: len(order)] = order
        self._native.runner_give_turn(self._mapping.address, team.number)
        patience_s = STOP_S if order.kind == STOP else TURN_S
        deadline = time.monotonic() + patience_s
        while self._native.runner_await_done(self._mapping.address, team.ranks, TICK_MS) < team.ranks:
            if order.kind != STOP:
                team.check()
            if time.monotonic() > deadline:
                raise TeamLost(f"{team.name} did not finish a turn within {patience_s:.0f} s: {team.last_words()}")
        block, ranks = self._block, team.ranks
        return (max(block.stop[:ranks]) - min(block.start[:ranks])) * 1e-9, sum(block.wrong[:ranks])

    def dismiss(self, team: Team) -> None:
        """Ends a lost team; the others go on."""
        self.teams.remove(team)
        team.end(0)

    def close(self) -> None:
        """Tells every team to stop, and sees to it."""
        for team in self.teams:
            with suppress(TeamLost):
                if team.hello:
                    team.check()
                    self.turn(team, Order(STOP))
                    team.end(STOP_S)
            team.end(0)
        self.teams.clear()
