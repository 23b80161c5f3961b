"""`ringdp blame`: which rank or link makes the others wait, and why."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from typing import Any

from ringdp.cli.jobs import add_traces_command, status_of_command
from ringdp.text.units import counted
from ringdp.tools.observe.blame import Blame, Table, judge
from ringdp.tools.observe.traces import TraceError

_EPILOG = """\
examples:
  ringdp blame -- torchrun --nproc-per-node 4 train.py   run it with tracing on, then judge
  RINGDP_TRACE=/shared/run torchrun ... ; ringdp blame /shared/run
causes: compute (forward and backward), data (between steps: the loader), late (no steps to compare), link (bytes move
slowly although all ranks are there). Jitter that moves from rank to rank is not blamed. No two clocks are compared.
"""


def add_command(commands: Any) -> None:
    """Adds `blame` to argparse's sub-commands."""
    add_traces_command(
        commands,
        "blame",
        run,
        help="which rank or link makes the others wait, and why",
        description="Judges the traces of all ranks",
        epilog=_EPILOG,
    )


def run(options: argparse.Namespace) -> int:
    """0: judged, whatever was found; the command's own status when it failed; 2: there is nothing to judge."""
    from ringdp.tools.observe.evidence import table_of_folder

    status = 0
    try:
        status = status_of_command(options)
        table = table_of_folder(options.folder)
    except TraceError as error:
        print(f"ringdp blame: {error}", file=sys.stderr)
        return status or 2
    found = judge(table)
    if options.json:
        rows = [dataclasses.asdict(finding) for finding in found]
        print(json.dumps({"folder": str(options.folder), "seconds": table.seconds, "findings": rows}))
    else:
        print(render(table, found))
        if options.command:
            print(f"The traces are in {options.folder}.")
    return status


def render(table: Table, found: list[Blame]) -> str:
    """The findings as text for a person."""
    seen = f"{counted(len(table.waits), 'collective')} and {counted(len(table.steps), 'step')} in {table.seconds:.1f} s"
    if not found:
        return f"Nothing to blame in {seen}."
    return "\n".join([f"In {seen}:", *(f"  {finding.cause:<8} {finding}" for finding in found)])
