#!/usr/bin/env python3
"""What micro_batches=M costs: the same step in rank order and along the tree of leaves, alternating in one run.

    python benchmarks/leaves.py                          # one leaf per rank, 2 ranks
    python benchmarks/leaves.py --leaves 4 --model gpt   # four, against accumulation under no_sync

rank order: the wrapper without micro_batches, all leaves of a rank but its last one under no_sync. Times are medians
over rounds, of the slowest rank; ratio: the step over that of "rank order", round by round. The model "mlp" has 58.7 M
parameters and little to compute, "gpt" 10 M and more.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from leaves_rank import MODELS, RANK_ORDER, Job
from runner import machine
from runner.job import run_job
from runner.program import add_outputs, add_places, check_least, check_outputs, check_places, picture, write


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line; exits with status 2 on bad input."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_places(parser)
    parser.add_argument("--backend", default="ringdp")
    parser.add_argument("--model", choices=sorted(MODELS), default="mlp")
    parser.add_argument("--leaves", type=int, default=1, help="per rank and step")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--check", type=float, metavar="RATIO", help="status 1 when that of micro_batches is above it")
    add_outputs(parser, "rows, settings and machine as JSON", "a bar per mode")
    options = parser.parse_args(arguments)
    check_places(parser, options)
    check_least(parser, options, rounds=2, leaves=1)
    check_outputs(parser, options)
    return options


@dataclass(frozen=True)
class Row:
    """Seconds, and ratios to rank order with their first and last decile."""

    mode: str
    step: float
    ratio: float
    low: float
    high: float


def rows_of(reports: Sequence[dict[str, Any]]) -> list[Row]:
    """One row per mode, in their order. A step takes as long as on its slowest rank."""
    modes = reports[0]["seconds"]
    slowest = {mode: [max(of) for of in zip(*(own["seconds"][mode] for own in reports), strict=True)] for mode in modes}
    rows = []
    for mode, seconds in slowest.items():
        ratios = [mine / base for mine, base in zip(seconds, slowest[RANK_ORDER], strict=True)]
        low, *_, high = quantiles(ratios, n=10)
        rows.append(Row(mode, median(seconds), median(ratios), low, high))
    return rows


def text_of(rows: Sequence[Row]) -> str:
    """A table for people."""
    lines = [f"{'mode':<32}{'step':>10}{'x rank order':>14}   [p10 p90]"]
    lines += [
        f"{row.mode:<32}{1e3 * row.step:>7.1f} ms{row.ratio:>14.3f}   [{row.low:.3f} {row.high:.3f}]" for row in rows
    ]
    return "\n".join(lines)


def draw(result: dict[str, Any], path: Path) -> None:
    """Writes the PNG."""
    rows = result["rows"][::-1]
    with picture(path, figsize=(7.5, 2.2)) as (_, axes):
        axes.barh([row["mode"] for row in rows], [1e3 * row["step"] for row in rows], color="#1f4e8c")
        axes.set_xlabel("step, ms (median)")
        axes.set_title(result["title"], loc="left", fontsize=9)


def main() -> int:
    """The exit status."""
    options = parse()
    job = Job(options.backend, options.model, options.leaves, options.rounds)
    facts = machine.describe()
    try:
        reports = run_job("leaves_rank", asdict(job), options.ranks, options.hosts, options.rate)
    except (RuntimeError, ValueError) as problem:
        print(f"leaves: {problem}", file=sys.stderr)
        return 1
    rows = rows_of(reports)
    link = f"{options.hosts} hosts at {options.rate:g} Gb/s" if options.hosts > 1 else "one host"
    title = (
        f"{options.model}, {reports[0]['parameters'] / 1e6:.1f} M parameters, {options.ranks} ranks over "
        f"{options.backend}, {link}, {options.leaves} leaves per rank"
    )
    print(f"{title}, {options.rounds} rounds")
    print(machine.sentence(facts))
    print(text_of(rows))
    result = {
        "command": shlex.join(["python", *sys.argv]),
        "title": title,
        "machine": facts,
        "job": asdict(job),
        "rows": [asdict(row) for row in rows],
    }
    write(options, result)
    if options.plot:
        draw(result, options.plot)
    return int(options.check is not None and rows[-1].ratio > options.check)


if __name__ == "__main__":
    sys.exit(main())
