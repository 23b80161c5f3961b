#!/usr/bin/env python3
"""Which algorithm is the fastest all_reduce here? Each one, by turns, in one run.

    python benchmarks/algorithms.py --ranks 4                                       # links in shared memory
    python benchmarks/algorithms.py --ranks 16 --hosts 16 --rate 1 --sizes 4KiB,16MiB   # namespaces; needs root
    python benchmarks/algorithms.py --ranks 2 --hosts 2 --rtt 50 --algorithms direct,exchange           # far apart
    python benchmarks/algorithms.py --ranks 8 --algorithms arena,arena/tree             # what order=tree costs
    python benchmarks/algorithms.py --ranks 4 --hosts 2 --algorithms direct,hierarchy,hierarchy/tree

A time is that of the slowest rank; rows show medians over rounds, and the ratio to the first algorithm, round by round.
Every sum is checked. halving and names that end in /tree sum with order=tree, the others with order=rank.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from algorithms_rank import Job
from runner.cell import size_name
from runner.hosts import Distance
from runner.job import run_job
from runner.program import (
    Bar,
    Chart,
    add_outputs,
    add_places,
    by_round,
    check_least,
    check_outputs,
    check_places,
    head,
    names,
    over,
    place_of,
    publish,
    sizes,
)

NAMES = (
    "direct",
    "direct/tree",
    "exchange",
    "exchange/tree",
    "ring",
    "tree",
    "halving",
    "server",
    "arena",
    "arena/tree",
    "hierarchy",
    "hierarchy/tree",
)


ALL = "all"


def algorithms(text: str) -> list[str]:
    """A comma-separated choice, each once; or ALL."""
    return [ALL] if text == ALL else list(dict.fromkeys(names(NAMES, text)))


def obstacle(name: str, ranks: int, hosts: int) -> str:
    """Why an algorithm cannot run there; empty if it can."""
    if name == "halving" and ranks & (ranks - 1):
        return f"needs a power of two of ranks, not {ranks}"
    if name.startswith("hierarchy") and hosts < 2:
        return "needs --hosts: one host has no layers"
    if name.startswith("arena") and hosts > 1:
        return f"needs all ranks on one host, not on {hosts}"
    return ""


def settings_of(name: str) -> dict[str, str]:
    """Of a group that runs this algorithm."""
    along_tree = name == "halving" or name.endswith("/tree")
    return {"algorithm": name.removesuffix("/tree"), "order": "tree" if along_tree else "rank"}


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line; exits with status 2 on bad input."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_places(parser, ranks=4)
    parser.add_argument("--rtt", type=float, default=0.0, metavar="MS", help="how far apart hosts are")
    parser.add_argument("--algorithms", type=algorithms, default=algorithms("direct,ring,halving"), metavar="A,B,...")
    parser.add_argument("--sizes", type=sizes, default=sizes("4KiB,1MiB,16MiB"), help="default 4KiB,1MiB,16MiB")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--check", type=float, default=0.0, metavar="RATIO", help="status 1 if one is higher")
    add_outputs(parser, "rows, settings and machine as JSON", "a bar per algorithm and size")
    options = parser.parse_args(arguments)
    check_places(parser, options)
    check_least(parser, options, ranks=2, rounds=2, rtt=0)
    if options.rtt and options.hosts < 2:
        parser.error("--rtt needs --hosts: one host is not far from itself")
    if options.check and len(options.algorithms) < 2:
        parser.error(f"--check compares with the first algorithm, and there is only {options.algorithms[0]}")
    obstacles = {name: obstacle(name, options.ranks, options.hosts) for name in NAMES}
    if options.algorithms == [ALL]:
        options.algorithms = [name for name in NAMES if not obstacles[name]]
    for name in options.algorithms:
        if obstacles[name]:
            parser.error(f"{name} {obstacles[name]}; leave it out of --algorithms")
    check_outputs(parser, options)
    return options


@dataclass(frozen=True)
class Row:
    """Seconds, and the median ratio to the first algorithm."""

    size: int
    algorithm: str
    seconds: float
    ratio: float


def rows_of(reports: Sequence[dict[str, Any]]) -> list[Row]:
    """By size and algorithm."""
    rows = []
    for size in reports[0]:
        slowest = by_round(reports, size, max)
        first = next(iter(slowest.values()))
        for name, seconds in slowest.items():
            rows.append(Row(int(size), name, median(seconds), median(over(seconds, first))))
    return rows


def text_of(rows: Sequence[Row]) -> str:
    """A table for people."""
    lines = [f"{'size':>8}  {'algorithm':<12}{'time':>12}{'x ' + rows[0].algorithm:>12}"]
    lines += [f"{size_name(r.size):>8}  {r.algorithm:<12}{1e3 * r.seconds:>9.3f} ms{r.ratio:>12.3f}" for r in rows]
    return "\n".join(lines)


def main() -> int:
    """The exit status."""
    options = parse()
    job = Job({name: settings_of(name) for name in options.algorithms}, options.sizes, options.rounds)
    distance = f", {options.rtt:g} ms apart" if options.rtt else ""
    title = f"all_reduce, {options.ranks} ranks, {place_of(options)}{distance}, {options.rounds} rounds"
    facts = head(title)
    try:
        apart = Distance(options.rtt) if options.rtt else None
        reports = run_job("algorithms_rank", asdict(job), options.ranks, options.hosts, options.rate, distance=apart)
    except (RuntimeError, ValueError) as problem:
        print(f"algorithms: {problem}", file=sys.stderr)
        return 1
    rows = rows_of(reports)
    print(text_of(rows))
    first, compared = rows[0].algorithm, [row for row in rows if options.check and row.algorithm != rows[0].algorithm]
    bars = [Bar(f"{first} / {r.algorithm}, {size_name(r.size)}", 1 / r.ratio, 1 / options.check) for r in compared]
    chart = Chart({f"{size_name(row.size)} {row.algorithm}": 1e3 * row.seconds for row in rows}, "ms")
    return publish(options, title, facts, [asdict(row) for row in rows], bars, chart)


if __name__ == "__main__":
    sys.exit(main())
