#!/usr/bin/env python3
"""What does distance cost? Calls between hosts that are far apart, in round trips, by turns with gloo.

    python benchmarks/round_trips.py --ranks 2,3 --rtt 50,100 --rate 0.5      # needs root and /dev/net/tun

One rank per host. A time runs from when the last rank has called until the last one is through, median over rounds; the
second number is that time in round trips. Sums are checked.

4 KiB: one all_reduce. 16 x 64 KiB: so many, called one after the other and then waited for. 12 x 1 MiB: a backward pass
of torch's DistributedDataParallel in so many buckets; compute: the same without communication. group: new_group.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from round_trips_rank import BUCKETS, Job
from runner.hosts import Distance
from runner.job import run_job
from runner.program import Bar, Chart, add_outputs, check_least, check_outputs, head, listed, publish

MIB = 1 << 20
GROUP_S = 0.5


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line; exits with status 2 on bad input."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=listed(int), default=[2, 3], help="default 2,3")
    parser.add_argument("--rtt", type=listed(float), default=[50.0, 100.0], help="ms; default 50,100")
    parser.add_argument("--rate", type=float, default=0.5, help="Gb/s of each host's link (default 0.5)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--check", action="store_true", help="status 1 when a bar is not held")
    add_outputs(parser, "rows, settings and machine as JSON", "a bar per row")
    options = parser.parse_args(arguments)
    check_least(parser, options, rounds=2, rate=0.001)
    if not all(ranks in range(2, 17) for ranks in options.ranks):
        parser.error("--ranks: 2 to 16, one on each host")
    if not all(rtt > 0 for rtt in options.rtt):
        parser.error("--rtt: above 0 ms")
    check_outputs(parser, options)
    return options


@dataclass(frozen=True)
class Row:
    """Seconds of a call, and those in round trips; a backward pass also has its compute."""

    ranks: int
    rtt_ms: float
    call: str
    backend: str
    seconds: float
    trips: float
    compute: float = 0.0


def span(calls: Sequence[Sequence[float]]) -> float:
    """From the last rank's start to the last rank's end."""
    return max(end for _, end in calls) - max(begun for begun, _ in calls)


def rows_of(reports: Sequence[dict[str, Any]], rtt_ms: float) -> list[Row]:
    """By call and backend; each report has the times of one rank."""
    rows = []
    for call, by_backend in reports[0]["times"].items():
        for backend in by_backend:
            rounds = zip(*(own["times"][call][backend] for own in reports), strict=True)
            seconds = median(span(calls) for calls in rounds)
            compute = max(median(own["compute"]) for own in reports) if "MiB" in call else 0.0
            rows.append(Row(len(reports), rtt_ms, call, backend, seconds, seconds / (rtt_ms / 1e3), compute))
    return rows


def bars_of(rows: Sequence[Row], rate: float) -> list[Bar]:
    """What ringdp's calls may take at most, over what they took."""
    bars = []
    for row in rows:
        if row.backend != "ringdp":
            continue
        rtt = row.rtt_ms / 1e3
        wire = BUCKETS * MIB * 2 * (row.ranks - 1) / row.ranks / (rate * 1e9 / 8)
        most = {
            "4 KiB": 0.55 * rtt,
            "16 x 64 KiB": 3 * rtt,
            f"{BUCKETS} x 1 MiB": row.compute + 1.5 * rtt + wire,
            "group": GROUP_S * row.rtt_ms / 50,
        }[row.call]
        what = f"{1e3 * most:.0f} ms / {row.call}, {row.ranks} ranks, RTT {row.rtt_ms:g} ms:"
        bars.append(Bar(what, most / row.seconds, 1.0))
    return bars


HEAD = f"{'ranks':>5} {'RTT':>7}  {'call':<12} {'backend':<8}{'time':>12}{'RTT':>8}"


def text_of(rows: Sequence[Row]) -> str:
    """Lines of a table for people, below HEAD."""
    lines = []
    for r in rows:
        compute = f"  of it compute {1e3 * r.compute:.0f} ms" if r.compute else ""
        times = f"{1e3 * r.seconds:>9.1f} ms{r.trips:>8.2f}"
        lines.append(f"{r.ranks:>5} {r.rtt_ms:>4g} ms  {r.call:<12} {r.backend:<8}{times}{compute}")
    return "\n".join(lines)


def main() -> int:
    """The exit status."""
    options = parse()
    title = f"calls between hosts far apart, links of {options.rate:g} Gb/s, {options.rounds} rounds"
    facts = head(title)
    print(HEAD)
    rows: list[Row] = []
    for rtt in options.rtt:
        for ranks in map(int, options.ranks):
            job = asdict(Job(options.rounds))
            try:
                reports = run_job("round_trips_rank", job, ranks, ranks, options.rate, distance=Distance(rtt))
            except (RuntimeError, ValueError) as problem:
                print(f"round_trips: {problem}", file=sys.stderr)
                return 1
            found = rows_of(reports, rtt)
            print(text_of(found), flush=True)
            rows += found
    chart = Chart({f"{r.call}, {r.ranks} ranks, {r.rtt_ms:g} ms, {r.backend}": r.trips for r in rows}, "round trips")
    return publish(options, title, facts, [asdict(row) for row in rows], bars_of(rows, options.rate), chart)


if __name__ == "__main__":
    sys.exit(main())
