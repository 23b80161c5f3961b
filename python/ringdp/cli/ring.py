"""`ringdp ring`: shows how an all_reduce goes, step by step, as the recorded plans of the real algorithms say."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ringdp.cli import ring_steps
from ringdp.cli.numbers import positive
from ringdp.playback.executor import execute
from ringdp.playback.play import play
from ringdp.playback.schemes import SCHEMES
from ringdp.playback.trace import Trace

MAX_RANKS, MAX_CHUNKS = 16, 32
EXAMPLE = "example: ringdp ring --ranks 4 --html ring.html   (open the page in a browser)"


def add_command(commands: Any) -> None:
    """Adds `ring` to argparse's sub-commands."""
    command = commands.add_parser("ring", help="watch an all_reduce, step by step; also as a page", epilog=EXAMPLE)
    command.add_argument(
        "--ranks", type=positive(int, MAX_RANKS), default=4, metavar="N", help=f"default 4, at most {MAX_RANKS}"
    )
    command.add_argument(
        "--chunks", type=positive(int, MAX_CHUNKS), metavar="C", help=f"per tensor: default N, at most {MAX_CHUNKS}"
    )
    names = ", ".join(SCHEMES)
    command.add_argument("--algorithm", choices=SCHEMES, default="ring/rotated", metavar="NAME", help=names)
    shown = command.add_mutually_exclusive_group()
    shown.add_argument("--step", action="store_true", help="one step per key press (in a terminal)")
    shown.add_argument("--html", type=Path, metavar="FILE", help="write the page: this, and the scaling calculator")
    shown.add_argument("--json", action="store_true", help="print JSON")
    command.set_defaults(run=run)


def executed(trace: Trace) -> dict[str, Any] | None:
    """What the real executor did with the same inputs over shared-memory links; None where the plan is no ring."""
    scheme = SCHEMES[trace.scheme]
    if scheme.algorithm != "ring":
        return None
    return execute(trace.inputs, scheme.asks.get("order", "rank"))


def report(trace: Trace) -> dict[str, Any]:
    """The trace for programs, with every step's phase and every rank's chunks, and what the executor did."""
    frames = [
        {**asdict(frame), "phase": trace.phase(frame), "values": trace.values(number)}
        for number, frame in enumerate(trace.frames, 1)
    ]
    owned = {rank: {held.chunk: held.value for held in done} for rank, done in trace.owned().items()}
    return {**asdict(trace), "frames": frames, "owned": owned, "executed": executed(trace)}


def run(options: argparse.Namespace) -> int:
    """Prints the steps, or writes the page; 2 where that cannot be done."""
    if options.step and not (sys.stdin.isatty() and sys.stdout.isatty()):
        print("ringdp ring: --step needs a terminal; without it all steps are printed", file=sys.stderr)
        return 2
    try:
        trace = play(options.algorithm, options.ranks, options.chunks or options.ranks)
    except ImportError as error:  # no torch, or no extension that fits it
        print(f"ringdp ring: {error}", file=sys.stderr)
        return 1
    if options.html:
        return _write_page(options.html, trace)
    if options.json:
        print(json.dumps(report(trace)))
    elif options.step:
        ring_steps.show_by_key(trace, executed(trace))
    else:
        ring_steps.show_all(trace, executed(trace))
    return 0


def _write_page(file: Path, trace: Trace) -> int:
    from ringdp.pages import ring_page, writing

    return writing.write("ringdp ring", file, ring_page.page(trace))
