"""Runs a program of benchmarks/ as a user would, with this interpreter."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


def run(program: str, *arguments: object, status: int = 0) -> str:
    """What it printed; AssertionError with its words when it ended otherwise than with `status`."""
    path = os.pathsep.join((str(ROOT / "python"), str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")))
    command = [sys.executable, str(ROOT / "benchmarks" / program), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env={**os.environ, "PYTHONPATH": path})
    assert done.returncode == status, f"status {done.returncode}: {done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr


def read(path: Path) -> dict[str, Any]:
    """The JSON that it wrote."""
    return json.loads(path.read_text())
