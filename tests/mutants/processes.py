"""Commands with a time limit, at whose end nothing that they started is left."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Ended:
    """How a command ended; the status is None when it ran past its limit."""

    status: int | None
    output: str
    seconds: float


def descendants(pid: int) -> list[int]:
    """All processes below this one: launchers of ranks start sessions of their own."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError, ValueError):  # it has ended meanwhile
            children.setdefault(int(stat.read_text().rpartition(")")[2].split()[1]), []).append(int(stat.parent.name))
    found, look = [], [pid]
    while look:
        below = children.get(look.pop(), [])
        found += below
        look += below
    return found


def end(process: subprocess.Popen[bytes]) -> None:
    """Kills a process with everything that it started."""
    for pid in [*descendants(process.pid), process.pid]:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def run(command: list[str], *, cwd: Path, env: dict[str, str], limit_s: float, log: Path) -> Ended:
    """Runs a command, its output in a log; ends it at its limit, or when this process is interrupted."""
    log.parent.mkdir(parents=True, exist_ok=True)
    start = time.monotonic()
    with log.open("wb") as stream:
        process = subprocess.Popen(
            command,
            cwd=cwd,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        status = None
        try:
            with suppress(subprocess.TimeoutExpired):
                status = process.wait(limit_s)
        finally:
            if status is None:
                end(process)
    return Ended(status, log.read_text(errors="replace"), time.monotonic() - start)
