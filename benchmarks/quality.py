#!/usr/bin/env python3
"""Does it train as well? The loss after equally many samples, of ways to send less and of plain training.

    python benchmarks/quality.py compress                  # compress=..., with error feedback and without, under SGD
    python benchmarks/quality.py adam                      # under AdamW, and OneBitAdam
    python benchmarks/quality.py local --jobs 2            # ringdp.DiLoCo: workers that meet every 10 or 50 steps
    python benchmarks/quality.py local --methods diloco-50 --outer-lr 0.7 --outer-momentum 0.9 --start 0

No network: one process plays all ranks, with their bits. Every method has the same start, samples and schedule, and the
best of --rates for it, by the result of the first seed; a rate is marked * where it is the first or last of them.
problems: the loss on held-out text of a GPT of 0.12 M parameters; with compress= also a quadratic whose ranks have
targets of their own. loss: mean over seeds. ratio: of the loss to that of the part's first method, median over seeds.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from multiprocessing import get_context
from statistics import mean, median

from quality_training import GPT, METHODS, QUADRATIC, Case, Outcome, train
from runner.program import Bar, Chart, add_outputs, check_least, check_outputs, head, names, publish


@dataclass(frozen=True)
class Recipe:
    """Of a problem, by default."""

    rates: list[float]
    steps: int


RANKS, BATCH = 4, 4
PARTS: dict[str, dict[str, Recipe]] = {
    "compress": {QUADRATIC: Recipe([0.003, 0.01, 0.03, 0.1], 1000), GPT: Recipe([0.01, 0.03, 0.1, 0.3], 400)},
    "adam": {GPT: Recipe([2e-3, 4e-3, 8e-3], 400)},
    "local": {GPT: Recipe([2e-3, 4e-3, 8e-3], 400)},
}
FEEDBACK_MOST = {"int8": 1.005, "sign": 1.03, "powersgd-1": 1.02}
LOCAL_MOST = {"diloco-10": 1.01, "diloco-50": 1.03}
PROBE_STEPS = 5


def numbers(text: str) -> list[float]:
    """Comma-separated numbers, for argparse."""
    return [float(part) for part in text.split(",")]


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line; exits with status 2 on bad input."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=tuple(PARTS))
    parser.add_argument("--methods", default="all", help="comma-separated; the part's first one is always trained")
    parser.add_argument("--problems", default="all", help=f"compress: {GPT}, {QUADRATIC}")
    parser.add_argument("--seeds", type=int, default=3, help="how many (default 3)")
    parser.add_argument("--steps", type=int, help=f"default: {GPT} 400, {QUADRATIC} 1000")
    parser.add_argument("--rates", type=numbers, help="to choose from, for all problems")
    parser.add_argument("--ranks", type=int, default=RANKS, help=f"or workers (default {RANKS})")
    parser.add_argument("--batch", type=int, default=BATCH, help=f"samples of a rank in a step (default {BATCH})")
    parser.add_argument("--outer-lr", type=float, default=1.0, help="local (default 1, in a training of few rounds)")
    parser.add_argument("--outer-momentum", type=float, default=0.0, help="local (default 0, for the same reason)")
    parser.add_argument("--start", type=int, help="local: synchronous steps at the beginning (default: a fifth of all)")
    parser.add_argument("--jobs", type=int, default=1, help="processes that train at the same time")
    parser.add_argument("--check", action="store_true", help="status 1 when a bar is not held")
    add_outputs(parser, "rows, settings and machine as JSON", "a bar per row")
    options = parser.parse_args(arguments)
    part = PARTS[options.part]
    check_least(parser, options, seeds=1, ranks=1, batch=1, jobs=1)
    for name, least in (("steps", PROBE_STEPS), ("start", 0)):
        if getattr(options, name) is not None:
            check_least(parser, options, **{name: least})
    for name, known in (("methods", tuple(METHODS[options.part])), ("problems", tuple(part))):
        try:
            setattr(options, name, names(known, getattr(options, name)))
        except argparse.ArgumentTypeError as error:
            parser.error(f"--{name}: {error}")
    if options.rates is not None and not all(0 < rate < math.inf for rate in options.rates):
        parser.error("--rates: above 0")
    first = next(iter(METHODS[options.part]))
    options.methods = [first, *(name for name in options.methods if name != first)]
    if not 0 < options.outer_lr < math.inf or not 0 <= options.outer_momentum < 1:
        parser.error("--outer-lr: above 0; --outer-momentum: from 0 to below 1")
    check_outputs(parser, options)
    return options


@dataclass(frozen=True)
class Row:
    """A method on a problem, with its best rate. losses: by seed."""

    problem: str
    method: str
    rate: float
    at_edge: bool
    losses: list[float]
    loss: float
    ratio: float
    least: float
    most: float
    by_rate: dict[str, float]


class Trainer:
    """Trains many cases, in so many processes, and says how far it is."""

    def __init__(self, jobs: int, total: int) -> None:
        self._pool = ProcessPoolExecutor(jobs, get_context("spawn")) if jobs > 1 else None
        self._done, self._total = 0, total

    def train(self, cases: Sequence[Case]) -> dict[Case, Outcome]:
        """All of them."""
        found = {}
        for case, outcome in zip(cases, (self._pool.map if self._pool else map)(train, cases), strict=True):
            found[case] = outcome
            self._done += 1
            where = f"{case.problem}, {case.method}, rate {case.rate:g}, seed {case.seed}: {outcome.loss:.4f}"
            print(f"{self._done} of {self._total}: {where}", file=sys.stderr, flush=True)
        return found

    def close(self) -> None:
        """Ends its processes."""
        if self._pool:
            self._pool.shutdown(cancel_futures=True)


def cases_of(options: argparse.Namespace, problem: str, method: str, seed: int) -> list[Case]:
    """One of each rate."""
    recipe = PARTS[options.part][problem]
    steps = options.steps or recipe.steps
    outer: tuple[tuple[str, float], ...] = ()
    if options.part == "local":
        start = steps // 5 if options.start is None else options.start
        outer = (("outer_lr", options.outer_lr), ("momentum", options.outer_momentum), ("start", start))
    return [
        Case(options.part, problem, method, rate, seed, steps, options.ranks, options.batch, outer)
        for rate in options.rates or recipe.rates
    ]


def predicted(options: argparse.Namespace) -> float:
    """Seconds of everything, by a few steps of every method."""
    total = 0.0
    for problem in options.problems:
        for method in options.methods:
            cases = cases_of(options, problem, method, 0)
            probe = replace(cases[0], steps=PROBE_STEPS)
            if not total:
                train(probe)  # imports what torch has put off
            step = train(probe).step_seconds
            total += (len(cases) + options.seeds - 1) * cases[0].steps * step
    return total / options.jobs


def row_of(options: argparse.Namespace, trainer: Trainer, problem: str, method: str, first: Row | None) -> Row:
    """Tries all rates with the first seed, and the best of them with the others."""
    tried = trainer.train(cases_of(options, problem, method, 0))
    best = min(tried, key=lambda case: tried[case].loss)
    others = trainer.train([replace(best, seed=seed) for seed in range(1, options.seeds)])
    losses = [tried[best].loss, *(outcome.loss for outcome in others.values())]
    ratios = [a / b for a, b in zip(losses, first.losses if first else losses, strict=True)]
    rates = [case.rate for case in tried]
    return Row(
        problem=problem,
        method=method,
        rate=best.rate,
        at_edge=len(rates) > 1 and best.rate in (min(rates), max(rates)),
        losses=losses,
        loss=mean(losses),
        ratio=median(ratios),
        least=min(ratios),
        most=max(ratios),
        by_rate={f"{case.rate:g}": outcome.loss for case, outcome in tried.items()},
    )


HEAD = f"{'problem':<10} {'method':<22}{'rate':>9}{'loss':>11}{'ratio':>9}   [least most]"


def text_of(row: Row) -> str:
    """A line of a table for people, below HEAD."""
    rate = f"{row.rate:g}{'*' if row.at_edge else ''}"
    ratios = f"{row.ratio:>9.4f}   [{row.least:.4f} {row.most:.4f}]"
    return f"{row.problem:<10} {row.method:<22}{rate:>9}{row.loss:>11.4f}{ratios}"


def bars_of(rows: Sequence[Row]) -> list[Bar]:
    """What the ratios may be at most, over what they are."""
    found = {(row.problem, row.method): row for row in rows}
    bars = []
    for row in rows:
        most = FEEDBACK_MOST.get(row.method) or LOCAL_MOST.get(row.method)
        if most:
            bars.append(Bar(f"{most:g} / ratio of {row.method}, {row.problem}:", most / row.ratio, 1))
        if row.method == "sign-no-feedback" and row.problem == QUADRATIC:  # which does not get there
            bars.append(
                Bar(f"ratio of {row.method} / {FEEDBACK_MOST['sign']:g}:", row.ratio / FEEDBACK_MOST["sign"], 1)
            )
        other = found.get((row.problem, "diloco-50"))
        if other and row.method in ("diloco-50-muon", "diloco-50-topk"):
            allowed = 1.01 if row.method.endswith("topk") else 1.0
            share = median(a / b for a, b in zip(other.losses, row.losses, strict=True))
            bars.append(Bar(f"{allowed:g} x loss of diloco-50 / {row.method}'s:", allowed * share, 1))
    return bars


def rows_of(options: argparse.Namespace, trainer: Trainer) -> Iterator[Row]:
    """As they are there; each problem begins with the method that others are compared with."""
    for problem in options.problems:
        first = None
        for method in options.methods:
            row = row_of(options, trainer, problem, method, first)
            first = first or row
            yield row


def main() -> int:
    """The exit status."""
    options = parse()
    trainings = sum(
        len(cases_of(options, problem, options.methods[0], 0)) + options.seeds - 1 for problem in options.problems
    ) * len(options.methods)
    title = f"{options.part}: {options.ranks} ranks, {options.seeds} seeds"
    title += f", {options.steps} steps" if options.steps else ""
    facts = head(title)
    print(f"{trainings} trainings, about {predicted(options):.0f} s\n{HEAD}", flush=True)
    trainer = Trainer(options.jobs, trainings)
    rows = []
    try:
        for row in rows_of(options, trainer):
            print(text_of(row), flush=True)
            rows.append(row)
    finally:
        trainer.close()
    chart = Chart({f"{row.problem}, {row.method}": row.ratio for row in rows}, "of the first method's loss")
    return publish(options, title, facts, [asdict(row) for row in rows], bars_of(rows), chart)


if __name__ == "__main__":
    sys.exit(main())
