"""Runs a user's command with its ranks watched, and ends it on request, with every process that it left."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from ringdp.attach.assignment import VARIABLE, Assignment

_TICK_S = 0.2
_GRACE_S = 10.0


@dataclass(frozen=True)
class Ended:
    """`status`: the command's own, negative for a signal. `stopped`: why it was ended before its time, else ''."""

    status: int
    stopped: str = ""


def run(
    command: Sequence[str],
    assignment: Assignment,
    tick: Callable[[], str],
    output: IO[Any] | None = None,
    errors: IO[Any] | None = None,
) -> Ended:
    """Until the command ends, or tick(), called five times a second, gives a reason to end it.

    output, errors: where its standard streams go; None: where this process's go. OSError when it cannot be started.
    """
    environment = {**os.environ, VARIABLE: str(assignment)}
    process = subprocess.Popen(command, env=environment, stdout=output, stderr=errors, start_new_session=True)
    reason = ""
    try:
        while process.poll() is None and not reason:
            with suppress(subprocess.TimeoutExpired):
                process.wait(_TICK_S)
            reason = tick() if process.poll() is None else ""
    except KeyboardInterrupt:
        reason = "interrupted"
    finally:
        _end(process, str(assignment))
    return Ended(process.returncode, reason)


def _end(process: subprocess.Popen[Any], mark: str) -> None:
    """Asks it to end, then kills what is left of it."""
    if process.poll() is None:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(_GRACE_S)
    for pid in watched(mark):
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
    process.wait()


def watched(mark: str) -> list[int]:
    """The processes of this user that carry this assignment in their environment, but for this one."""
    entry = f"{VARIABLE}={mark}".encode()
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if entry in (folder / "environ").read_bytes().split(b"\0") and int(folder.name) != os.getpid():
                found.append(int(folder.name))
    return found
