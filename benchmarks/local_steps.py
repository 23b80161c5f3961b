#!/usr/bin/env python3
"""Is the communication of workers that step alone hidden? A streaming DiLoCo against the same one without a link.

    python benchmarks/local_steps.py                                       # 100 Mb/s, 50 ms; needs root, /dev/net/tun
    python benchmarks/local_steps.py --rate 10M --compress int4 --every 100

Hosts with a rank each train the GPT of time_to_loss.py. Candidates take turns of --block times H steps in the same
processes, in another order in each round, and begin at the same moment on all ranks:
    inner steps     AdamW alone, without any outer step
    alone           DiLoCo of one worker on each rank by itself: the same training without communication
    delay D         DiLoCo of all ranks, over the link. --delays: numbers of steps; "least" is the least D that
                    `ringdp plan local` says hides the way, given the time of an inner step that is measured first
Columns, of the slowest rank in each turn:
    step            median over rounds
    ratio           to `alone` in the same round: median, least, most
    predicted       the same ratio, by `ringdp plan local`
    of inner        ratio to `inner steps`: what outer steps cost altogether
The requirement is on the least delay: its step takes at most 1.05 of `alone`.
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from local_steps_rank import ALONE, INNER, Job, name_of, why_not
from ringdp.compress.codec import NAMES
from ringdp.text.units import seconds as time_text
from runner.hosts import Distance
from runner.job import run_job
from runner.program import Bar, Chart, add_outputs, by_round, check_least, check_outputs, head, over, publish
from time_to_loss import SLOW, gigabits

MOST = 1.05
LEAST = "least"


def delays(text: str) -> list[int | None]:
    """Comma-separated numbers of steps, or "least", for argparse."""
    try:
        found = [None if part == LEAST else int(part) for part in text.split(",")]
    except ValueError:
        found = [-1]
    if any(delay is not None and delay < 0 for delay in found):
        raise argparse.ArgumentTypeError(f"{text!r}: write numbers of steps, 0 or more, or {LEAST}, as 0,{LEAST}")
    return found


def one_rate(text: str) -> float:
    """Gb/s of one link, for argparse."""
    rates = gigabits(text)
    if len(rates) != 1 or not rates[0] > 0:
        raise argparse.ArgumentTypeError(f"{text!r}: one rate above 0")
    return rates[0]


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line; exits with status 2 on bad input."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, default=2, help="one rank on each")
    parser.add_argument("--rate", type=one_rate, default=SLOW, help="of each host's link: 100M (default), 1G")
    parser.add_argument("--rtt", type=float, default=50.0, help="ms (default 50)")
    parser.add_argument("--delays", type=delays, default=[0, None], help=f"default 0,{LEAST}")
    parser.add_argument("--every", type=int, default=50, metavar="H", help="steps alone (default 50)")
    parser.add_argument("--fragments", type=int, default=4, metavar="P", help="(default 4)")
    parser.add_argument("--alpha", type=float, default=0.5, help="(default 0.5)")
    parser.add_argument("--compress", choices=NAMES[1:], help="codes instead of float32")
    parser.add_argument("--rounds", type=int, default=9, help="(default 9)")
    parser.add_argument("--block", type=int, default=1, help="times H steps in a turn (default 1)")
    parser.add_argument("--lr", type=float, default=1e-3, help="of AdamW (default 0.001)")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--dim", type=int, default=256, help="of the model")
    parser.add_argument("--context", type=int, default=128, help="bytes of a sample")
    parser.add_argument("--batch", type=int, default=4, help="samples of a rank in a step")
    parser.add_argument("--check", action="store_true", help="status 1 when the requirement is not met")
    add_outputs(parser, "rows, settings and machine as JSON", "the ratios")
    options = parser.parse_args(arguments)
    check_least(parser, options, hosts=2, rtt=0, every=1, fragments=1, rounds=1, block=1)
    check_least(parser, options, layers=1, context=1, batch=1)
    if not 0 <= options.alpha < 1:
        parser.error("--alpha: from 0 to below 1")
    if options.dim < 4 or options.dim % 4:
        parser.error(f"--dim is {options.dim}, must be a multiple of 4, the number of heads")
    if options.fragments > options.every:
        parser.error(f"--fragments is {options.fragments}, must be at most --every, which is {options.every}")
    longest = max(delay or 0 for delay in options.delays)
    if problem := why_not(longest, options.fragments, options.every):
        parser.error(f"--delays: {problem}")
    check_outputs(parser, options)
    return options


@dataclass(frozen=True)
class Row:
    """A candidate. step: seconds. ratio, least, most: to `alone`. predicted: None of those that do not communicate."""

    candidate: str
    step: float
    ratio: float
    least: float
    most: float
    predicted: float | None
    of_inner: float


def rows_of(reports: Sequence[Mapping[str, Any]]) -> list[Row]:
    """One of each candidate; a step takes as long as on the slowest rank."""
    times = by_round(reports, "seconds", max)
    rows = []
    for name, seconds in times.items():
        ratios, plan = over(seconds, times[ALONE]), reports[0]["predicted"].get(name)
        row = Row(
            candidate=name,
            step=median(seconds),
            ratio=median(ratios),
            least=min(ratios),
            most=max(ratios),
            predicted=None if plan is None else plan["step, of one alone"],
            of_inner=median(over(seconds, times[INNER])),
        )
        rows.append(row)
    return rows


def plan_of(report: Mapping[str, Any]) -> str:
    """What the planner has said before the turns."""
    plan = next(iter(report["predicted"].values()))  # these figures do not depend on the delay
    return (
        f"ringdp plan local: {report['parameters']:,} parameters, an inner step of {time_text(report['step'])}: a "
        f"fragment is {time_text(plan['on the way'])} on its way; delay {report['least']} hides it, from H = "
        f"{plan['least H']} on"
    )


HEAD = f"{'candidate':<14}{'step':>10}{'ratio':>9}   {'[least most]':<17}{'predicted':>10}{'of inner':>10}"


def text_of(row: Row) -> str:
    """A line of a table for people, below HEAD."""
    spread = f"[{row.least:.3f} {row.most:.3f}]"
    predicted = "-" if row.predicted is None else f"{row.predicted:.3f}"
    step = f"{1e3 * row.step:.1f} ms"
    return f"{row.candidate:<14}{step:>10}{row.ratio:>9.3f}   {spread:<17}{predicted:>10}{row.of_inner:>10.3f}"


def bars_of(rows: Sequence[Row], least: int) -> list[Bar]:
    """Of the delay that is said to hide the way, where it was measured."""
    return [
        Bar(f"{MOST:g} of a step without communication / with {row.candidate}:", MOST / row.ratio, 1)
        for row in rows
        if row.candidate == name_of(least)
    ]


def main() -> int:
    """The exit status."""
    options = parse()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # unwinds, so that no rank stays behind
    title = f"local steps, {options.hosts} hosts at {1e3 * options.rate:g} Mb/s, {options.rtt:g} ms apart"
    facts = head(title)
    job = Job(
        backend="ringdp",
        shape={"context": options.context, "dim": options.dim, "layers": options.layers},
        batch=options.batch,
        rate=options.lr,
        every=options.every,
        fragments=options.fragments,
        alpha=options.alpha,
        compress=options.compress,
        delays=options.delays,
        bandwidth=options.rate * 1e9 / 8,
        rtt=options.rtt / 1e3,
        rounds=options.rounds,
        block=options.block,
    )
    try:
        reports = run_job(
            "local_steps_rank",
            asdict(job),
            options.hosts,
            options.hosts,
            options.rate,
            distance=Distance(options.rtt),
        )
    except (RuntimeError, ValueError) as problem:
        print(f"local_steps: {problem}", file=sys.stderr)
        return 1
    rows = rows_of(reports)
    print(plan_of(reports[0]), HEAD, *map(text_of, rows), sep="\n", flush=True)
    chart = Chart({row.candidate: row.ratio for row in rows}, "of a step without communication")
    listed = [{**asdict(row), "plan": reports[0]["predicted"].get(row.candidate)} for row in rows]
    return publish(options, title, facts, listed, bars_of(rows, reports[0]["least"]), chart)


if __name__ == "__main__":
    sys.exit(main())
