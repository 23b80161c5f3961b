"""What `ringdp trace` and `ringdp blame` share: a folder of traces, filled by a command if there is one."""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

from ringdp.observe.launch import run_traced

_DEFAULT = "ringdp-trace"  # the first run's, here; those after it have ringdp-trace-2, ringdp-trace-3, ...


def add_folder(command: argparse.ArgumentParser) -> None:
    """Adds the argument FOLDER, and that a command may follow."""
    command.add_argument(
        "folder",
        nargs="?",
        metavar="FOLDER",
        type=Path,
        help=f"what RINGDP_TRACE named (default: {_DEFAULT}, or the latest {_DEFAULT}-N; a command fills the next one)",
    )
    command.set_defaults(runs_command=True)


def status_of_command(options: argparse.Namespace) -> int:
    """Runs what stands behind `--`, traced; 0 if nothing does. TraceError as run_traced(). Sets options.folder.

    With --json the command's output goes to stderr: stdout has one JSON object.
    """
    if options.folder is None:
        number = _latest() + bool(options.command)
        options.folder = Path(_DEFAULT if number < 2 else f"{_DEFAULT}-{number}")
    if not options.command:
        return 0
    return run_traced(options.command, options.folder, sys.stderr if options.json else None)


def _latest() -> int:
    """The number of the latest default folder that holds traces; 0 where none does."""
    names = {folder: re.fullmatch(rf"{_DEFAULT}(?:-(\d+))?", folder.name) for folder in Path().glob(f"{_DEFAULT}*")}
    return max((int(name[1] or 1) for folder, name in names.items() if name and any(folder.glob("rank_*"))), default=0)
