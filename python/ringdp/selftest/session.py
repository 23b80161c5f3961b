"""Starts the ranks of a self-test, passes on their reports, names ranks that die or hang, leaves nothing behind."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from tempfile import TemporaryDirectory
from typing import Any

from ringdp.selftest.rank import Assignment, Verdict, main

Entry = Callable[[Connection, int, Assignment], None]


@dataclass(frozen=True)
class Event:
    """A verdict of one rank on one case; `case` None: the rank stopped, and the verdict says why."""

    rank: int
    transport: str
    case: int | None
    verdict: Verdict


class Session:
    """`stall_s`: when no rank reports for so long, the unfinished ones are named and killed."""

    def __init__(self, assignment: Assignment, stall_s: float, entry: Entry = main) -> None:
        self._folder = TemporaryDirectory(prefix="ringdp-selftest-")
        self._assignment = replace(assignment, folder=self._folder.name)
        self._stall_s = stall_s
        self._entry = entry
        self._running: dict[Connection, int] = {}
        self._processes: list[Any] = []
        self._last: dict[int, str] = {}

    def __enter__(self) -> Session:
        spawner = multiprocessing.get_context("forkserver")
        spawner.set_forkserver_preload(["ringdp.selftest.rank"])
        for rank in range(self._assignment.size):
            mine, theirs = spawner.Pipe(duplex=False)
            process = spawner.Process(target=self._entry, args=(theirs, rank, self._assignment), daemon=True)
            process.start()
            theirs.close()
            self._running[mine] = rank
            self._processes.append(process)
        return self

    def __exit__(self, *_: object) -> None:
        for pipe in self._running:
            pipe.close()
        for process in self._processes:
            if self._running:
                process.kill()
            process.join()
        self._folder.cleanup()

    @property
    def pids(self) -> list[int]:
        """By rank."""
        return [process.pid for process in self._processes]

    def events(self) -> Iterator[Event]:
        """Yields until every rank has finished, died or been killed."""
        heard = time.monotonic()
        while self._running:
            ready = wait(list(self._running), max(0.0, heard + self._stall_s - time.monotonic()))
            if not ready:
                yield from self._give_up()
                return
            heard = time.monotonic()
            for pipe in ready:
                event = self._receive(pipe)
                if event:
                    yield event

    def _receive(self, pipe: Connection) -> Event | None:
        rank = self._running[pipe]
        try:
            report = pipe.recv()
        except EOFError:
            return self._stopped(pipe, self._death_of(rank))
        if report is None:
            del self._running[pipe]
            pipe.close()
            return None
        transport, number, verdict = report
        if number is None:
            return Event(rank, transport, None, Verdict("wrong", verdict))
        self._last[rank] = f"{transport}: {self._assignment.cases[number]}"
        return Event(rank, transport, number, verdict)

    def _death_of(self, rank: int) -> str:
        process = self._processes[rank]
        process.join()
        return f"died with status {process.exitcode}"

    def _stopped(self, pipe: Connection, how: str) -> Event:
        rank = self._running.pop(pipe)
        pipe.close()
        where = self._last.get(rank, "nothing: it never got to its first case")
        return Event(rank, "", None, Verdict("wrong", f"{how}; the last it reported is {where}"))

    def _give_up(self) -> Iterator[Event]:
        for pipe, rank in list(self._running.items()):
            self._processes[rank].kill()
            self._processes[rank].join()
            yield self._stopped(pipe, f"hangs: killed after {self._stall_s:g} s without a word")
