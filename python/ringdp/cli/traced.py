"""What `ringdp trace` and `ringdp blame` share: a folder of traces, filled by a command if there is one."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from ringdp.observe.launch import run_traced

_DEFAULT = Path("ringdp-trace")


def add_folder(command: argparse.ArgumentParser) -> None:
    """Adds the argument FOLDER, and that a command may follow."""
    command.add_argument(
        "folder",
        nargs="?",
        metavar="FOLDER",
        type=Path,
        default=_DEFAULT,
        help=f"what RINGDP_TRACE named (default: {_DEFAULT})",
    )
    command.set_defaults(runs_command=True)


def status_of_command(options: argparse.Namespace) -> int:
    """Runs what stands behind `--`, traced; 0 if nothing does. TraceError as run_traced().

    With --json the command's output goes to stderr: stdout has one JSON object.
    """
    if not options.command:
        return 0
    return run_traced(options.command, options.folder, sys.stderr if options.json else None)
