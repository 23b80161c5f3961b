"""Runs a user's command with something to know for its ranks, and ends it with every process that it left."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

_TICK_S = 0.2
_GRACE_S = 10.0
_KILL_S = 5.0  # for processes that the kernel does not let go at once


@dataclass(frozen=True)
class Ended:
    """`status`: as a shell has it, 128 + n for signal n. `stopped`: why it was ended before its time, else ''."""

    status: int
    stopped: str = ""


def run(
    command: Sequence[str],
    told: Mapping[str, str],
    tick: Callable[[], str] = lambda: "",
    output: IO[Any] | None = None,
    errors: IO[Any] | None = None,
) -> Ended:
    """Until the command ends, or tick(), called five times a second, gives a reason to end it.

    told: what is added to its environment, of this job alone: its processes are known by it. output, errors: where its
    standard streams go; None: where this process's go. OSError when it cannot be started. An exception, such as a
    KeyboardInterrupt, ends the job and goes on.
    """
    environment = {**os.environ, **told}
    process = subprocess.Popen(command, env=environment, stdout=output, stderr=errors, start_new_session=True)
    since = _started(Path(f"/proc/{process.pid}"))
    reason = ""
    try:
        while process.poll() is None and not reason:
            with suppress(subprocess.TimeoutExpired):
                process.wait(_TICK_S)
            reason = tick() if process.poll() is None else ""
    finally:
        try:
            _ask(process)
        finally:  # who interrupts the waiting too still leaves nothing behind
            _kill(process, told, since)
    return Ended(128 - process.returncode if process.returncode < 0 else process.returncode, reason)


def _ask(process: subprocess.Popen[Any]) -> None:
    if process.poll() is None:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(_GRACE_S)


def _kill(process: subprocess.Popen[Any], told: Mapping[str, str], since: int) -> None:
    """All that is left; it returns when they are gone."""
    process.kill()
    process.wait()
    end = time.monotonic() + _KILL_S
    while (left := watched(told, since)) and time.monotonic() < end:
        for pid in left:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)


def watched(told: Mapping[str, str], since: int = 0) -> list[int]:
    """The processes of this user that carry all this in their environment and are no older than `since`, in the
    kernel's ticks: a shell in which the user has set the same is older. This process is not among them.
    """
    entries = {f"{name}={value}".encode() for name, value in told.items()}
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            carries = entries <= set((folder / "environ").read_bytes().split(b"\0"))
            if carries and _started(folder) >= since and int(folder.name) != os.getpid():
                found.append(int(folder.name))
    return found


def _started(process: Path) -> int:
    """Its starttime, see proc(5)."""
    return int((process / "stat").read_text().rpartition(")")[2].split()[19])
