"""Starts the ranks of a tuning, passes on what they measured, leaves nothing behind."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator
from dataclasses import replace
from multiprocessing.connection import Connection, wait
from tempfile import TemporaryDirectory
from typing import Any

from ringdp.tools.tune.microbenchmark import Microbenchmark, Times
from ringdp.tools.tune.rank import Assignment, main

Entry = Callable[[Connection, int, Assignment], None]
_STALL_S = 90.0  # the ranks' own deadlines come first and say more


class TuneError(Exception):
    """No measurement: a rank failed, died or went silent; the message says which and why."""


def measured(assignment: Assignment, entry: Entry = main) -> Iterator[tuple[Microbenchmark, Times]]:
    """The benchmarks with their times, in order, each as soon as it has finished."""
    spawner = multiprocessing.get_context("forkserver")
    spawner.set_forkserver_preload(["ringdp.tools.tune.rank"])
    with TemporaryDirectory(prefix="ringdp-tune-") as folder:
        pipes: list[Connection] = []
        processes: list[Any] = []
        try:
            for rank in range(assignment.size):
                mine, theirs = spawner.Pipe(duplex=False)
                process = spawner.Process(
                    target=entry, args=(theirs, rank, replace(assignment, folder=folder)), daemon=True
                )
                process.start()
                theirs.close()
                pipes.append(mine)
                processes.append(process)
            yield from zip(assignment.benchmarks, _reports(pipes, processes, assignment), strict=True)
        finally:
            for pipe, process in zip(pipes, processes, strict=True):
                pipe.close()
                process.kill()
                process.join()


def _reports(pipes: list[Connection], processes: list[Any], assignment: Assignment) -> Iterator[Times]:
    running = dict(zip(pipes, range(len(pipes)), strict=True))
    while running:
        ready = wait(list(running), _STALL_S + assignment.seconds)
        if not ready:
            raise TuneError(f"ranks {sorted(running.values())} went silent for {_STALL_S + assignment.seconds:g} s")
        for pipe in ready:
            try:
                report = pipe.recv()
            except EOFError:
                rank = running[pipe]
                processes[rank].join()
                raise TuneError(f"rank {rank} died with status {processes[rank].exitcode}") from None
            if isinstance(report, str):
                raise TuneError(report)
            if report is None:
                del running[pipe]
            else:
                yield report
