#!/usr/bin/env python3
"""How fast are collectives over ringdp: next to gloo, MPI and DeepSpeed's op, and next to what this machine can move?

    python benchmarks/collectives.py                                  # all_reduce, 2 and 4 ranks, against gloo
    python benchmarks/collectives.py --peers all --json r.json --plot r.png
    python benchmarks/collectives.py --ops all --dtypes float32,bfloat16 --sizes 1MiB,16MiB --ranks 2,4,8
    python benchmarks/collectives.py --hosts 2 --rate 1 --sizes 16MiB --ranks 2,4   # over shaped links; needs root

Every round runs every candidate once, in shuffled order, on fresh data, and checks every element of every result: one
wrong element makes the exit status 1. A time is the last rank's end minus the first rank's start; rows show medians.
Ratios are medians of per-round ratios. Columns in addition to those of nccl-tests (GB = 10^9 bytes):
  of sweep, shuffle, probe  share of a limit: limit's time / candidate's (runner/limits.py says of what)
  x gloo                    gloo's time / the candidate's, with the 10th and 90th percentile over rounds
  x ringdp                  the candidate's time / that of ringdp on ordinary tensors
Peers besides gloo are installed by `python benchmarks/peers.py`, one virtual environment each. What cannot run is named
below the table with its reason. Quiet machine, please: idle share and load are printed with the results.
"""

from __future__ import annotations

import argparse
import shlex
import signal
import sys
from itertools import product
from pathlib import Path
from typing import Any

from runner import machine, table
from runner.cell import OPS, Cell, size_name
from runner.coordinator import TeamLost
from runner.hosts import Hosts
from runner.native import DTYPES, MAX_RANKS
from runner.peers import PEERS
from runner.program import add_outputs, check_outputs, names, sizes, write
from runner.rounds import Length
from runner.session import Session, Wishes

ROOT = Path(__file__).resolve().parent.parent
SIZES = "4KiB,64KiB,1MiB,16MiB,64MiB"


def ranks(text: str) -> list[int]:
    """Comma-separated numbers of ranks."""
    try:
        found = [int(part) for part in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r}: write numbers, as 2,4,8") from None
    if not all(2 <= n <= MAX_RANKS for n in found):
        raise argparse.ArgumentTypeError(f"{text!r}: must be 2 to {MAX_RANKS} ranks")
    return found


def pair(text: str) -> tuple[str, str]:
    """NAME:MODULE."""
    name, _, module = text.partition(":")
    if not (name and module):
        raise argparse.ArgumentTypeError(f"{text!r}: write NAME:MODULE")
    return name, module


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line; exits with status 2 on bad input."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=ranks, default=[2, 4], help="default 2,4")
    parser.add_argument("--sizes", type=sizes, default=sizes(SIZES), help=f"of the larger buffer; default {SIZES}")
    parser.add_argument(
        "--ops", type=lambda t: names(OPS, t), default=["all_reduce"], help=f"of {','.join(OPS)}, or all"
    )
    parser.add_argument(
        "--dtypes", type=lambda t: names(tuple(DTYPES), t), default=["float32"], help="or bfloat16, all"
    )
    known = ("gloo", *PEERS)
    parser.add_argument(
        "--peers", type=lambda t: names(known, t), default=["gloo"], help=f"of {','.join(known)}, or all"
    )
    parser.add_argument("--peers-folder", type=Path, default=ROOT / ".peers", help="where peers.py has installed them")
    backend = {"metavar": "NAME:MODULE", "help": "another c10d backend, and what to import for it"}
    parser.add_argument("--backend", action="append", default=[], type=pair, **backend)
    parser.add_argument("--rounds", type=int, default=200, help="at most, per cell (default 200)")
    parser.add_argument("--seconds", type=float, default=2.0, help="per cell, after at least 5 rounds (default 2)")
    parser.add_argument("--hosts", type=int, default=0, help="spread the ranks over so many network namespaces")
    parser.add_argument("--rate", type=float, default=0.0, help="with --hosts: Gb/s of each host's link (0: unshaped)")
    add_outputs(parser, "facts and rows", "times and shares of the limit")
    found = parser.parse_args(arguments)
    check_outputs(parser, found)
    if found.rounds < 1 or found.seconds < 0:
        parser.error("--rounds must be at least 1 and --seconds at least 0")
    if uneven := [n for n in found.ranks if found.hosts and n % found.hosts]:
        parser.error(f"--ranks {uneven[0]} does not divide evenly over --hosts {found.hosts}")
    return found


def wishes_of(found: argparse.Namespace) -> Wishes:
    """What a session needs to know. gloo always takes part: it is the common measure."""
    return Wishes(
        peers=["gloo", *(name for name in found.peers if name != "gloo")],
        peers_folder=found.peers_folder,
        backends=dict(found.backend),
        length=Length(least=min(5, found.rounds), most=found.rounds, seconds=found.seconds),
        hosts=Hosts(found.hosts, found.rate) if found.hosts else None,
    )


def cells_of(found: argparse.Namespace, world: int) -> list[Cell]:
    """All cells of one number of ranks."""
    return [Cell(op, dtype, world, size) for op, dtype, size in product(found.ops, found.dtypes, found.sizes)]


def measure(found: argparse.Namespace, world: int, result: dict[str, Any]) -> None:
    """Measures on `world` ranks; prints rows as they come and adds them to the result."""

    def progress(number: int, cell: Cell) -> None:
        if sys.stderr.isatty():
            words = f"{world} ranks: {cell.op} {cell.dtype} {size_name(cell.size)}, {number + 1} of {len(cells)}"
            print(f"\r\033[K{words}", end="", file=sys.stderr, flush=True)

    cells = cells_of(found, world)
    with Session(world, cells, wishes_of(found)) as session:
        for cell, entries in session.measure(progress):
            if sys.stderr.isatty():
                print("\r\033[K", end="", file=sys.stderr, flush=True)
            fresh = table.rows_of(cell, entries)
            result["rows"] += fresh
            for row in fresh:
                print(table.line(row, session.report.limits), flush=True)
        result["limits"] = session.report.limits
        result["versions"] |= session.report.versions
        result["settings"] |= {f"{name}, {world} ranks": how for name, how in session.report.settings.items()}
        result["left_out"] |= session.report.left_out


def finish(found: argparse.Namespace, result: dict[str, Any]) -> int:
    """Versions, settings and what was left out; files; the exit status."""
    for title in ("versions", "settings", "left_out"):
        for name, what in result[title].items():
            print(f"# {title.replace('_', ' ')}: {name}: {what}")
    wrong = sum(row["wrong"] for row in result["rows"])
    print(f"# {len(result['rows'])} rows, {wrong} wrong elements")
    write(found, result)
    if found.plot:
        table.draw(result, found.plot)
    return int(wrong > 0)


def main() -> int:
    """Prints the table; 1 when an element was wrong or ringdp's own ranks failed."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # unwinds, so that no rank stays behind
    found = parse()
    facts = machine.describe()
    result: dict[str, Any] = {"command": shlex.join(["python", *sys.argv]), "machine": facts, "hosts": found.hosts}
    result |= {"rate_gbit": found.rate, "rows": [], "limits": [], "versions": {}, "settings": {}, "left_out": {}}
    print(f"# {machine.sentence(facts)}\n{table.header()}", flush=True)
    try:
        for world in found.ranks:
            measure(found, world, result)
    except (TeamLost, ValueError, RuntimeError) as error:
        print(f"collectives: {error}", file=sys.stderr)
        return 1
    return finish(found, result)


if __name__ == "__main__":
    sys.exit(main())
