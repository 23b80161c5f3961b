"""Runs a training command with every rank's trace going to a folder."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from ringdp.observe.dump import TraceError

VARIABLE = "RINGDP_TRACE"


def run_traced(command: Sequence[str], folder: Path) -> int:
    """Runs it to its end; its exit status. TraceError: it cannot be started, or old traces lie there."""
    if folder.is_dir() and any(folder.glob("rank_*")):
        raise TraceError(f"{folder} holds traces of an earlier run: name another FOLDER, or remove it")
    folder.mkdir(parents=True, exist_ok=True)
    try:
        return subprocess.run(command, env={**os.environ, VARIABLE: str(folder.resolve())}, check=False).returncode
    except OSError as error:
        raise TraceError(f"cannot run {command[0]}: {error.strerror}") from None
