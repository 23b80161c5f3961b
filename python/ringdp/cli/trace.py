"""`ringdp trace`: every rank's events as one timeline for Perfetto."""

from __future__ import annotations

import argparse
import gzip
import json
import sys
from pathlib import Path
from typing import Any

from ringdp.cli.jobs import add_traces_command, status_of_command
from ringdp.text.units import counted
from ringdp.tools.observe.traces import Dump, TraceError, missing_ranks, read_folder

_EPILOG = """\
examples:
  ringdp trace -- torchrun --nproc-per-node 2 train.py   run it, then merge; open trace.json at ui.perfetto.dev
  RINGDP_TRACE=/shared/run torchrun ... ; ringdp trace /shared/run   several hosts: one folder that all can write
  torchfrtrace /shared/run                               the same files in torch's flight-recorder analyser
Each rank keeps its latest RINGDP_TRACE_EVENTS events, and writes them when it leaves or fails.
"""


def add_command(commands: Any) -> None:
    """Adds `trace` to argparse's sub-commands."""
    command = add_traces_command(
        commands,
        "trace",
        run,
        help="one timeline of all ranks, for Perfetto",
        description="Merges the traces of all ranks into one Chrome trace",
        epilog=_EPILOG,
    )
    command.add_argument(
        "-o", "--output", type=Path, help="file to write, gzip if it ends in .gz (default: FOLDER/trace.json)"
    )


def run(options: argparse.Namespace) -> int:
    """0: written; the command's own status when it failed; 2: there is nothing to merge."""
    status = 0
    try:
        status = status_of_command(options)
        dumps = read_folder(options.folder)
        output = options.output or options.folder / "trace.json"
        events = _write(dumps, output)
    except (TraceError, OSError) as error:
        print(f"ringdp trace: {error}", file=sys.stderr)
        return status or 2
    ranks = [dump.rank for dump in dumps]
    report = {"output": str(output), "ranks": ranks, "missing": missing_ranks(dumps), "events": events}
    print(json.dumps(report) if options.json else _render(report))
    return status


def _write(dumps: list[Dump], output: Path) -> int:
    from ringdp.tools.observe.perfetto import chrome_trace

    trace = chrome_trace(dumps)
    opened = gzip.open(output, "wt") if output.suffix == ".gz" else open(output, "w")  # noqa: SIM115
    with opened as file:
        json.dump(trace, file)
    return len(trace["traceEvents"])


def _render(report: dict[str, Any]) -> str:
    missing = f"; no trace of ranks {report['missing']}" if report["missing"] else ""
    what = f"{counted(report['events'], 'event')} of {counted(len(report['ranks']), 'rank')}{missing}"
    return f"{report['output']}: {what}; open it at ui.perfetto.dev"
