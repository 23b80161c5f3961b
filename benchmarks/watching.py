#!/usr/bin/env python3
"""What it costs to watch a run: check_drift, ringdp.audit() and RunLog against the same step unwatched.

    python benchmarks/watching.py --check                        # a small GPT on 2 ranks of this host
    python benchmarks/watching.py --model mlp --micro-batch 64

Every lane has its own copy of the model and its own loader, and takes a few steps per round, each round in another
order. Costs are medians of ratios within a round: of the slowest rank's time, and of all ranks' CPU time. The recorder
of events is always on: how many it writes per step is printed. A rank that computes alone on its core is disturbed
least: more ranks than cores measure the scheduler.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from race import machine
from race.arguments import check_least
from race.job import run_job
from race.outputs import add_outputs, check_outputs
from watched.rank import LANES, PLAIN, Job

BAR = 0.01


@dataclass(frozen=True)
class Row:
    """One lane. seconds, cpu: of a step, medians; costs: shares of the unwatched step."""

    lane: str
    seconds: float
    cpu: float
    cost: float
    cpu_cost: float

    @property
    def held(self) -> bool:
        """Whether its CPU time is within the bar: the clock's share has the scheduler's noise."""
        return self.cpu_cost <= BAR

    def __str__(self) -> str:
        costs = "" if self.lane == PLAIN else f"{self.cost:>10.2%}{self.cpu_cost:>10.2%}"
        return f"{self.lane:<14}{1e3 * self.seconds:>9.2f}{1e3 * self.cpu:>12.2f}{costs}"


def rows_of(everyones: Sequence[dict[str, Any]]) -> list[Row]:
    """Of all ranks' reports (watched/rank.py)."""

    def by_round(lane: str) -> tuple[list[float], list[float]]:
        rounds = list(zip(*(report["lanes"][lane] for report in everyones), strict=True))
        return [max(r["seconds"] for r in ranks) for ranks in rounds], [
            sum(r["cpu"] for r in ranks) for ranks in rounds
        ]

    plain = by_round(PLAIN)
    rows = []
    for lane in LANES:
        own = by_round(lane)
        costs = [
            median(o / p for o, p in zip(mine, bare, strict=True)) - 1 for mine, bare in zip(own, plain, strict=True)
        ]
        rows.append(Row(lane, median(own[0]), median(own[1]), *costs))
    return rows


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line; exits with status 2 on bad input."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--model", default="gpt", help="gpt, mlp, or module:function that returns a ringdp.Workload")
    parser.add_argument("--micro-batch", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--steps", type=int, default=4, help="of each lane in a round")
    parser.add_argument("--check", action="store_true", help=f"status 1 when one costs more than {BAR:.0%}")
    add_outputs(parser, "rows, settings and machine as JSON", "a bar per lane")
    options = parser.parse_args(arguments)
    check_least(parser, options, ranks=1, micro_batch=1, rounds=1, steps=1)
    check_outputs(parser, options)
    return options


def main() -> int:
    """The exit status."""
    options = parse()
    job = Job(options.model, options.micro_batch, options.rounds, options.steps)
    facts = machine.describe()
    try:
        everyones = run_job("watched.rank", asdict(job), options.ranks)
    except (RuntimeError, ValueError) as problem:
        print(f"watching: {problem}", file=sys.stderr)
        return 1
    rows = rows_of(everyones)
    title = f"{options.model}, micro-batch {options.micro_batch}, {options.ranks} ranks"
    print(f"{title}, {options.rounds} rounds of {options.steps} steps; {everyones[0]['events']:.1f} events a step")
    print(machine.sentence(facts))
    print(f"{'step':<14}{'ms':>9}{'CPU ms, all':>12}{'cost':>10}{'of CPU':>10}")
    for row in rows:
        print(row)
    for row in rows[1:]:
        verdict = "held" if row.held else "NOT HELD"
        print(f"{verdict}: {row.lane} costs {row.cpu_cost:.2%} of a step's CPU time, must be at most {BAR:.0%}")
    if options.json:
        result = {
            "command": shlex.join(["python", *sys.argv]),
            "title": title,
            "machine": facts,
            "job": asdict(job),
            "events_per_step": everyones[0]["events"],
            "rows": [{**asdict(row), "held": row.held} for row in rows],
        }
        options.json.write_text(json.dumps(result, indent=1) + "\n")
    if options.plot:
        from shards.plot import draw
        from shards.report import Chart

        draw(Chart({row.lane: 1e3 * row.seconds for row in rows}, "ms a step"), title, options.plot)
    return int(options.check and not all(row.held for row in rows))


if __name__ == "__main__":
    sys.exit(main())
