"""Runs a user's command with an assignment for its ranks, and ends it with all processes that it has started."""

from __future__ import annotations

import os
import signal
import subprocess
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

# The jobs to which a process belongs, a word each: one may run another. It tells them from all that share a setting.
VARIABLE = "RINGDP_JOB"

_TICK_S = 0.2
_GRACE_S = 10.0
_KILL_S = 5.0  # for processes that take long to die


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

    told: what is added to its environment. output, errors: where its standard streams go; None: where this process's
    go. OSError when it cannot be started. An exception, such as a KeyboardInterrupt, ends the job and goes on.
    """
    mark = uuid.uuid4().hex
    environment = {**os.environ, **told, VARIABLE: f"{os.environ.get(VARIABLE, '')} {mark}".strip()}
    try:  # from the start on: an interrupt can come before Popen has returned
        process = subprocess.Popen(command, env=environment, stdout=output, stderr=errors, start_new_session=True)
        return _watched(process, tick)
    finally:
        _kill(mark)


def _watched(process: subprocess.Popen[Any], tick: Callable[[], str]) -> Ended:
    reason = ""
    try:
        while process.poll() is None and not reason:
            with suppress(subprocess.TimeoutExpired):
                process.wait(_TICK_S)
            reason = tick() if process.poll() is None else ""
    except KeyboardInterrupt:
        _interrupt(process)
        raise
    finally:
        try:
            _ask(process)
        finally:  # also after a second interrupt nothing is left behind
            process.kill()
            process.wait()
    return Ended(128 - process.returncode if process.returncode < 0 else process.returncode, reason)


def _interrupt(process: subprocess.Popen[Any]) -> None:
    """Interrupts the job, as the terminal does with jobs of its own session: ranks write down what they have."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGINT)
    with suppress(subprocess.TimeoutExpired):
        process.wait(_GRACE_S)


def _ask(process: subprocess.Popen[Any]) -> None:
    if process.poll() is None:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(_GRACE_S)


def _kill(mark: str) -> None:
    """All that is left; it returns when they are gone."""
    end = time.monotonic() + _KILL_S
    while (left := marked(mark)) and time.monotonic() < end:
        for pid in left:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)


def marked(mark: str) -> list[int]:
    """The processes of this user that belong to a job, but for this one."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if mark in _jobs_of(folder) and int(folder.name) != os.getpid():
                found.append(int(folder.name))
    return found


def _jobs_of(process: Path) -> list[str]:
    prefix = f"{VARIABLE}=".encode()
    told = environment_of(process)
    return [word for entry in told if entry.startswith(prefix) for word in entry[len(prefix) :].decode().split()]


def environment_of(process: Path) -> list[bytes]:
    """NAME=value as it was given, of a folder of /proc. OSError when the process is gone, or is another user's."""
    return (process / "environ").read_bytes().split(b"\0")


def is_stopped(pid: int) -> bool:
    """Whether a signal or a debugger has stopped the process, so that it answers nobody."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in ("T", "t")
    return False
