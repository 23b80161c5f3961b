"""`ringdp report run.json`: one HTML page about a training run, from what the run has written."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from ringdp.pages import report_page, run_file, writing

EXAMPLE = "example: ringdp report run.json   (train_gpt --json run.json writes one; the page is run.html)"


def add_command(commands: Any) -> None:
    """Adds `report` to argparse's sub-commands."""
    command = commands.add_parser("report", help="a training run as one HTML page", epilog=EXAMPLE)
    command.add_argument("file", type=Path, metavar="RUN.json", help="what train_gpt --json has written")
    command.add_argument("--html", type=Path, metavar="FILE", help="where to (default: beside it, as .html)")
    command.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Writes the page; 2 when there is no run in the file, or the page cannot be written."""
    try:
        page = report_page.page(run_file.read(options.file))
    except run_file.NoRun as problem:
        print(f"ringdp report: {problem}", file=sys.stderr)
        return 2
    return writing.write("ringdp report", options.html or options.file.with_suffix(".html"), page)
