#!/usr/bin/env python3
"""Does compress="auto:..." decide right? On one host, between hosts at several rates, and on a link that is throttled.

    python benchmarks/ledger.py                                            # needs root, for hosts
    python benchmarks/ledger.py --rates 0.1,1 --method sign --json rows.json --plot rows.png

Two ranks train a model whose wrapper decides by itself; another wrapper follows the decisions, and must have the same
bits. Afterwards steps of a plain wrapper, of one that always compresses and of the one that has decided are taken by
turns, in blocks. Columns:
    mode      "codes" or "plain": what was decided last; from: the step from which it holds
    codes     a step that is compressed over a plain one: median over blocks, and the middle half of them
    auto      a step of the wrapper that has decided over a plain one
    replay    whether the follower has the same bits
Codes pay on links below the rate at which the second column is 1, the break-even, which is found between the measured
rates. A rate within 15 % of it may be decided either way.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import pairwise
from statistics import median, quantiles
from typing import Any

from ledger_rank import Job
from runner.hosts import Hosts
from runner.job import run_job
from runner.program import Bar, Chart, add_outputs, by_round, check_least, check_outputs, head, listed, over, publish

RANKS = 2
WITHIN = 0.15  # of the break-even
COST = 1.01
RATES = "0.1,0.5,1,2,4,8"
DECIDED_BY = 60  # a step
METHODS = ("int8", "fp8", "sign")
SHARED, LINK, THROTTLED = "shared memory", "link", "throttled link"


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line; exits with status 2 on bad input."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--method", default="int8", choices=METHODS)
    parser.add_argument("--rates", type=listed(float), default=listed(float)(RATES), help=f"Gb/s (default {RATES})")
    parser.add_argument("--fast", type=float, default=20.0, help="Gb/s of the link that is throttled (default 20)")
    parser.add_argument("--throttled", type=float, default=0.1, help="Gb/s to which it is (default 0.1)")
    parser.add_argument("--steps", type=int, default=80, help="for the first decision (default 80)")
    parser.add_argument("--later", type=int, default=130, help="for the decision after throttling (default 130)")
    parser.add_argument("--blocks", type=int, default=8, help="of 5 steps of each training, on links (default 8)")
    parser.add_argument("--blocks-shared", type=int, default=80, help="in shared memory (default 80)")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--batch", type=int, default=64, help="samples of a rank")
    parser.add_argument("--check", action="store_true", help="status 1 when a bar is not held")
    add_outputs(parser, "rows, settings and machine as JSON", "a bar per row")
    options = parser.parse_args(arguments)
    check_least(parser, options, steps=1, later=1, blocks=2, blocks_shared=2, layers=1, width=1, batch=1)
    if not all(rate > 0 for rate in [*options.rates, options.fast, options.throttled]):
        parser.error("--rates, --fast, --throttled: above 0 Gb/s")
    check_outputs(parser, options)
    return options


@dataclass(frozen=True)
class Row:
    """Of one place. gigabits: of its link, in the end; 0 in shared memory. since: the step of the latest decision."""

    where: str
    gigabits: float
    mode: str
    since: int
    codes: float
    low: float
    high: float
    auto: float
    replayed: bool


def row_of(where: str, gigabits: float, reports: Sequence[dict[str, Any]]) -> Row:
    """A step lasts as long as it does on the slower rank."""
    times = by_round(reports, "times", max)
    codes = over(times["codes"], times["plain"])
    low, _, high = quantiles(codes, n=4)
    since, mode = reports[0]["decisions"][-1]
    hashes = {each for report in reports for each in report["hashes"]}
    auto = median(over(times["auto"], times["plain"]))
    decided = {"coded": "codes", "whole": "plain"}.get(mode, mode)
    return Row(where, gigabits, decided, since, median(codes), low, high, auto, len(hashes) == 1)


def break_even(rows: Sequence[Row]) -> float:
    """The rate of a link, Gb/s, at which codes cost as much as they save: 0 or infinite beyond what was measured."""
    links = sorted((row.gigabits, row.codes) for row in rows if row.where == LINK)
    for (low, pays), (high, loses) in pairwise(links):
        if pays < 1 <= loses:
            part = -math.log(pays) / (math.log(loses) - math.log(pays))
            return low * (high / low) ** part
    return 0.0 if not links or links[0][1] >= 1 else math.inf


def bars_of(rows: Sequence[Row]) -> list[Bar]:
    """What must hold; right and equal count as 1."""
    even, bars = break_even(rows), []
    for row in rows:
        name = f"{row.where}, {row.gigabits:g} Gb/s" if row.gigabits else row.where
        bars.append(Bar(f"{name}: the same bits with the same decisions:", float(row.replayed), 1))
        if row.where == SHARED:
            bars.append(Bar(f"{name}: plain steps, decided:", float(row.mode == "plain"), 1))
            bars.append(Bar(f"{DECIDED_BY} / the step from which they are plain:", DECIDED_BY / max(row.since, 1), 1))
            bars.append(Bar(f"{COST} x plain / auto, {name}:", COST / row.auto, 1))
        elif not even / (1 + WITHIN) < row.gigabits < even * (1 + WITHIN):
            right = "codes" if row.gigabits < even else "plain"
            bars.append(Bar(f"{name}: {right}, decided:", float(row.mode == right), 1))
    return bars


HEAD = f"{'where':<15}{'rate':>11}  {'mode':<7}{'from':>5}{'codes':>8}{'middle half':>16}{'auto':>8}  replay"


def text_of(row: Row) -> str:
    """A line for people, below HEAD."""
    rate = f"{row.gigabits:g} Gb/s" if row.gigabits else ""
    spread = f"{row.low:.2f} to {row.high:.2f}"
    replay = "equal" if row.replayed else "OTHER BITS"
    head = f"{row.where:<15}{rate:>11}  {row.mode:<7}{row.since:>5}"
    return f"{head}{row.codes:>8.2f}{spread:>16}{row.auto:>8.3f}  {replay}"


def main() -> int:
    """The exit status."""
    options = parse()
    title = f"compress='auto:{options.method}', {RANKS} ranks, {options.layers} layers of {options.width}"
    facts = head(title)
    print(HEAD)
    job = Job(options.method, options.steps, 0, options.blocks, options.layers, options.width, options.batch)
    shared = {**asdict(job), "blocks": options.blocks_shared}
    later = {**asdict(job), "later": options.later}
    run = partial(run_job, "ledger_rank")
    places = [(SHARED, 0.0, partial(run, shared, RANKS))]
    places += [(LINK, rate, partial(run, asdict(job), RANKS, RANKS, rate)) for rate in sorted(options.rates)]

    def throttle(network: Hosts) -> None:
        network.shape(options.throttled)

    throttled = partial(run, later, RANKS, RANKS, options.fast, change=throttle)
    places.append((THROTTLED, options.throttled, throttled))
    rows = []
    try:
        for where, gigabits, measure in places:
            rows.append(row_of(where, gigabits, measure()))
            print(text_of(rows[-1]), flush=True)
    except (RuntimeError, ValueError) as problem:
        print(f"ledger: {problem}", file=sys.stderr)
        return 1
    print(f"break-even: {break_even(rows):.2f} Gb/s")
    chart = Chart({f"{r.where} {r.gigabits or ''}, ringdp {options.method}": r.codes for r in rows}, "of a plain step")
    return publish(options, title, facts, [asdict(row) for row in rows], bars_of(rows), chart)


if __name__ == "__main__":
    sys.exit(main())
