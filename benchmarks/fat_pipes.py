#!/usr/bin/env python3
"""How much of a long path does an all_reduce use? Two hosts, by turns with gloo and with plain sockets.

    python benchmarks/fat_pipes.py --rtt 0,20,50,100 --loss 0,0.001        # needs root and /dev/net/tun
    python benchmarks/fat_pipes.py --grows --rtt 50                        # the path becomes long once all is connected
    python benchmarks/fat_pipes.py --congestion cubic --buffers default    # as Linux comes

For two ranks an all_reduce moves as many bytes each way as the tensor has. The limit is the quicker of one and eight
plain connections that send and receive as many, with buffers as the kernel makes them. A time runs from when the last
rank has called until the last one is through; "of limit" and "x gloo" are medians of ratios by round.

net.core.wmem_max and rmem_max belong to the whole machine: this program only prints them.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from fat_pipes_rank import STREAMS, Job
from runner.cell import size_name
from runner.hosts import Distance, Hosts
from runner.job import run_job
from runner.program import Bar, Chart, add_outputs, check_least, check_outputs, head, listed, over, publish, sizes

DEFAULT_BUFFERS = {"net.ipv4.tcp_wmem": "4096 16384 4194304", "net.ipv4.tcp_rmem": "4096 131072 6291456"}
CONGESTION = Path("/proc/sys/net/ipv4/tcp_allowed_congestion_control")  # what a network namespace may take
LEAST, LEAST_WITH_LOSS = 0.9, 0.8


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line; exits with status 2 on bad input."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rtt", type=listed(float), default=[0.0, 20.0, 50.0, 100.0], help="ms; default 0,20,50,100")
    parser.add_argument("--loss", type=listed(float), default=[0.0, 0.001], help="shares of packets; default 0,0.001")
    parser.add_argument("--rate", type=float, default=0.5, help="Gb/s of each host's link (default 0.5)")
    parser.add_argument("--sizes", type=sizes, default=sizes("16MiB,64MiB"), help="default 16MiB,64MiB")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--congestion", help="control of the hosts' TCP: cubic, bbr, ... (default: this machine's)")
    parser.add_argument("--buffers", choices=["machine", "default"], default="machine", help="default: those of Linux")
    parser.add_argument("--grows", action="store_true", help="hosts are close until everything is connected")
    parser.add_argument("--check", action="store_true", help="status 1 when a bar is not held")
    add_outputs(parser, "rows, settings and machine as JSON", "a bar per row")
    options = parser.parse_args(arguments)
    check_least(parser, options, rounds=2, rate=0.001)
    if not all(rtt >= 0 for rtt in options.rtt):
        parser.error("--rtt: 0 ms or more")
    if not all(0 <= loss < 1 for loss in options.loss):
        parser.error("--loss: from 0 to below 1")
    allowed = CONGESTION.read_text().split() if CONGESTION.exists() else []
    if options.congestion and options.congestion not in allowed:
        parser.error(f"--congestion: invalid value '{options.congestion}' (allowed here: {', '.join(allowed)})")
    check_outputs(parser, options)
    return options


@dataclass(frozen=True)
class Row:
    """Median seconds of a candidate, and how it stands to the limit and to gloo."""

    rtt_ms: float
    loss: float
    size: int
    candidate: str
    seconds: float
    of_limit: float
    x_gloo: float


def spans(reports: Sequence[dict[str, Any]], size: str, candidate: str) -> list[float]:
    """By round, from the last rank's start to the last rank's end."""
    calls = zip(*(own["times"][size][candidate] for own in reports), strict=True)
    return [max(end for _, end in call) - max(begun for begun, _ in call) for call in calls]


def rows_of(reports: Sequence[dict[str, Any]], distance: Distance) -> list[Row]:
    """By size and candidate; each report has the times of one rank."""
    rows = []
    for size, candidates in reports[0]["times"].items():
        took = {name: spans(reports, size, name) for name in candidates}
        limit = min((took[f"{count} sockets"] for count in STREAMS), key=median)
        for name, seconds in took.items():
            of_limit, x_gloo = median(over(limit, seconds)), median(over(took["gloo"], seconds))
            rows.append(Row(distance.rtt_ms, distance.loss, int(size), name, median(seconds), of_limit, x_gloo))
    return rows


def bars_of(rows: Sequence[Row]) -> list[Bar]:
    """What ringdp must reach in every cell."""
    bars = []
    for row in rows:
        if row.candidate != "ringdp":
            continue
        where = f"{size_name(row.size)}, RTT {row.rtt_ms:g} ms, loss {row.loss:g}:"
        bars.append(Bar(f"of limit, {where}", row.of_limit, LEAST_WITH_LOSS if row.loss else LEAST))
        bars.append(Bar(f"x gloo, {where}", row.x_gloo, 1.0))
    return bars


HEAD = f"{'RTT':>7} {'loss':>7} {'size':>8}  {'candidate':<10}{'time':>12}{'of limit':>10}{'x gloo':>8}"


def text_of(rows: Sequence[Row]) -> str:
    """Lines of a table for people, below HEAD."""
    return "\n".join(
        f"{r.rtt_ms:>4g} ms {r.loss:>7g} {size_name(r.size):>8}  {r.candidate:<10}{1e3 * r.seconds:>9.1f} ms"
        f"{r.of_limit:>10.2f}{r.x_gloo:>8.2f}"
        for r in rows
    )


def limits() -> str:
    """The machine's largest buffers."""
    core = Path("/proc/sys/net/core")
    return ", ".join(f"{name} {(core / name).read_text().strip()}" for name in ("wmem_max", "rmem_max"))


def main() -> int:
    """The exit status."""
    options = parse()
    settings = dict(DEFAULT_BUFFERS) if options.buffers == "default" else {}
    if options.congestion:
        settings["net.ipv4.tcp_congestion_control"] = options.congestion
    title = f"all_reduce of two hosts, links of {options.rate:g} Gb/s, {options.rounds} rounds, {limits()}"
    title += f", {options.buffers} buffers" + (f", {options.congestion}" if options.congestion else "")
    title += ", a path that becomes long" if options.grows else ""
    facts = head(title)
    print(HEAD)
    rows: list[Row] = []
    for rtt in options.rtt:
        for loss in options.loss:
            distance = Distance(rtt, loss, settings, options.grows)
            job = asdict(Job(options.sizes, options.rounds, options.grows))
            try:
                grow = Hosts.grow if options.grows else None
                reports = run_job("fat_pipes_rank", job, 2, 2, options.rate, distance=distance, change=grow)
            except (RuntimeError, ValueError) as problem:
                print(f"fat_pipes: {problem}", file=sys.stderr)
                return 1
            found = rows_of(reports, distance)
            print(text_of(found), flush=True)
            rows += found
    names = [f"{size_name(r.size)}, {r.rtt_ms:g} ms, loss {r.loss:g}, {r.candidate}" for r in rows]
    chart = Chart(dict(zip(names, (r.of_limit for r in rows), strict=True)), "of limit")
    return publish(options, title, facts, [asdict(row) for row in rows], bars_of(rows), chart)


if __name__ == "__main__":
    sys.exit(main())
