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
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import median, quantiles
from typing import Any

from leaves_rank import MODELS, RANK_ORDER, Job
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
    over,
    place_of,
    publish,
)


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line; exits with status 2 on bad input."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_places(parser)
    parser.add_argument("--backend", default="ringdp")
    parser.add_argument("--model", choices=sorted(MODELS), default="mlp")
    parser.add_argument("--leaves", type=int, default=1, help="per rank and step")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--check", type=float, default=0.0, metavar="RATIO", help="status 1 above this ratio")
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
    slowest = by_round(reports, "seconds", max)
    rows = []
    for mode, seconds in slowest.items():
        ratios = over(seconds, slowest[RANK_ORDER])
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


def main() -> int:
    """The exit status."""
    options = parse()
    job = Job(options.backend, options.model, options.leaves, options.rounds)
    title = (
        f"{options.model}, {options.ranks} ranks over {options.backend}, {place_of(options)}, "
        f"{options.leaves} leaves per rank, {options.rounds} rounds"
    )
    facts = head(title)
    try:
        reports = run_job("leaves_rank", asdict(job), options.ranks, options.hosts, options.rate)
    except (RuntimeError, ValueError) as problem:
        print(f"leaves: {problem}", file=sys.stderr)
        return 1
    rows = rows_of(reports)
    print(f"{reports[0]['parameters'] / 1e6:.1f} M parameters")
    print(text_of(rows))
    bars = [Bar("rank order / micro_batches", 1 / rows[-1].ratio, 1 / options.check)] if options.check else []
    chart = Chart({row.mode: 1e3 * row.step for row in rows}, "ms a step")
    return publish(options, title, facts, [asdict(row) for row in rows], bars, chart)


if __name__ == "__main__":
    sys.exit(main())
