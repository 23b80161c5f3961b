"""Runs a program of benchmarks/ as a user would, but its processes have imported torch already."""

from __future__ import annotations

import json
import os
from argparse import Namespace
from collections.abc import Callable
from contextlib import redirect_stderr
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from forked import run_forked

ROOT = Path(__file__).resolve().parents[2]


def run(program: str, *arguments: object, status: int = 0) -> str:
    """What it printed; AssertionError with its words when it ended otherwise than with `status`."""
    path = os.pathsep.join((str(ROOT / "python"), str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")))
    command = ("-c", "import warm_program; warm_program.main()", str(ROOT / "benchmarks" / program))
    done = run_forked(*command, *map(str, arguments), env={**os.environ, "PYTHONPATH": path})
    assert done.returncode == status, f"status {done.returncode}: {done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr


def refusal(parse: Callable[[list[str]], Namespace], *arguments: object) -> str:
    """What a program says, by its parse(), to a command line with which it ends at once, with status 2."""
    said = StringIO()
    with redirect_stderr(said), pytest.raises(SystemExit) as ended:
        parse([str(argument) for argument in arguments])
    assert ended.value.code == 2
    return said.getvalue()


def read(path: Path) -> dict[str, Any]:
    """The JSON that it wrote."""
    return json.loads(path.read_text())
