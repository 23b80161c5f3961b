"""Runs a training command with every rank's trace going to a folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

from ringdp.attach import job
from ringdp.observe.dump import TraceError

VARIABLE = "RINGDP_TRACE"


def run_traced(command: Sequence[str], folder: Path, output: IO[Any] | None = None) -> int:
    """Runs it to its end; its exit status, as a shell has it. output: where its standard output goes, see job.run().

    TraceError: it cannot be started, the folder cannot be made, or old traces lie there.
    """
    if folder.is_dir() and any(folder.glob("rank_*")):
        raise TraceError(f"{folder} holds traces of an earlier run: name another FOLDER, or remove it")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise TraceError(f"{folder} is no folder for traces: {error.strerror}") from None
    try:
        return job.run(command, {VARIABLE: str(folder.resolve())}, output=output).status
    except OSError as error:
        raise TraceError(f"cannot run {command[0]}: {error.strerror}") from None
