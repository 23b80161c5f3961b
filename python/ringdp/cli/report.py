"""`ringdp report run.json`: a training run as one HTML page, or as figures, from what `ringdp.RunLog` has written."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from ringdp.tools.pages import document, report_page, run_file

_EPILOG = """example: ringdp report run.json   (the page is run.html)

A training loop writes its run.json with ringdp.RunLog:
  log = ringdp.RunLog(ddp, optimizer, items_per_step=256, unit="samples")
  log.step(loss)            after every optimizer step
  log.write("run.json")     at the end, on all ranks"""


def add_command(commands: Any) -> None:
    """Adds `report` to argparse's sub-commands."""
    command = commands.add_parser(
        "report",
        help="a training run as one HTML page",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.add_argument("file", type=Path, metavar="RUN.json", help="what ringdp.RunLog has written")
    shown = command.add_mutually_exclusive_group()
    shown.add_argument("--html", type=Path, metavar="FILE", help="where to (default: next to it, as .html)")
    shown.add_argument("--json", action="store_true", help="print what the page shows as JSON, and write no page")
    command.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Writes the page or prints the figures; 2 when there is no run in the file, or the page cannot be written."""
    try:
        found = run_file.read(options.file)
    except run_file.NoRun as problem:
        print(f"ringdp report: {problem}", file=sys.stderr)
        return 2
    if options.json:
        print(json.dumps(run_file.figures(found)))
        return 0
    target = options.html or options.file.with_suffix(".html")
    return document.write("ringdp report", target, report_page.page(found))
