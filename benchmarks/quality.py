#!/usr/bin/env python3
"""Does it train as well? The loss after equally many samples, of ways to send less and of plain training.

    python benchmarks/quality.py compress                  # compress=..., with error feedback and without, under SGD
    python benchmarks/quality.py adam                      # under AdamW, and OneBitAdam
    python benchmarks/quality.py local --jobs 2 --json q.json --plot q.png    # ringdp.DiLoCo: workers that meet every
                                                                              # 10 or 50 steps
    python benchmarks/quality.py local --methods diloco-50 --outers 0.7:0.9 --start 0

No network: one process plays all ranks, with their bits. All methods have the same starts, samples and schedule. Each
has the best of the same --rates, and with DiLoCo of all pairs of a rate and one of --outers, which are learning rates
and momenta of the outer SGD. The choice is made with a seed of its own, whose loss is none of the results; a rate is
marked * where it is the first or last of them. The last step of a training is one after which all workers meet.
problems: the loss on held-out text of a GPT of 0.12 M parameters; with compress= also a quadratic whose ranks have
targets of their own. loss: mean over seeds. ratio: of the loss to that of the part's first method, median over seeds.
--json FILE is written after each training. Trainings that are in it are not made again: what was interrupted goes on,
and more methods, rates or seeds are added. Name another file, or none, after a change of the code.
"""

from __future__ import annotations

import argparse
import json
import math
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, replace
from itertools import product
from multiprocessing import active_children, get_context
from statistics import mean, median

from quality_training import GPT, METHODS, QUADRATIC, Case, Outcome, train
from ringdp.text.units import counted
from runner.program import (
    Bar,
    Chart,
    add_outputs,
    check_least,
    check_outputs,
    head,
    listed,
    names,
    publish,
    result_of,
    write,
)


@dataclass(frozen=True)
class Recipe:
    """Of a problem, by default. batch: samples of a rank in a step."""

    rates: list[float]
    steps: int
    batch: int = 4


RANKS = 4
PARTS: dict[str, dict[str, Recipe]] = {
    "compress": {QUADRATIC: Recipe([0.003, 0.01, 0.03, 0.1], 1000), GPT: Recipe([0.01, 0.03, 0.1, 0.3], 400)},
    "adam": {GPT: Recipe([2e-3, 4e-3, 8e-3], 400)},
    # 17 bytes of text per parameter, and 16 rounds of 50 steps. DDP is best at 4e-3, with W = 4 times the batch of a
    # worker: twice that rate is as much noise in a mean of workers, so the largest one is beyond.
    "local": {GPT: Recipe([2e-3, 4e-3, 8e-3, 16e-3], 1000, batch=8)},
}
# Learning rate and momentum of the outer SGD: the means themselves; more than these, as means of W workers are shorter
# than what each has walked (arXiv 2509.10439: in all rate / (1 - momentum), above 1 where inner rates are small); and
# those of the DiLoCo paper, which fit hundreds of rounds.
OUTERS = [(1.0, 0.0), (0.7, 0.5), (0.5, 0.8), (0.7, 0.9)]
FEEDBACK_MOST = {"int8": 1.005, "sign": 1.03, "powersgd-1": 1.02}
LOCAL_MOST = {"diloco-10": 1.01, "diloco-50": 1.03}
# method -> the one it is compared with besides the first, and what its loss may be of that one's
AGAINST = {
    "diloco-50-muon": ("diloco-50", 1.0),
    "diloco-10-topk": ("diloco-10", 1.01),
    "diloco-50-topk": ("diloco-50", 1.01),
}
CHOOSING = 0  # the seed with which rates are chosen; results are those of the seeds after it
PROBE_STEPS = 5


def pairs(text: str) -> list[tuple[float, float]]:
    """Comma-separated LR:MOMENTUM, for argparse."""
    try:
        found = [(float(rate), float(momentum)) for rate, momentum in (part.split(":") for part in text.split(","))]
    except ValueError:
        found = [(0.0, 0.0)]
    if not all(0 < rate < math.inf and 0 <= momentum < 1 for rate, momentum in found):
        raise argparse.ArgumentTypeError(f"{text!r}: write LR:MOMENTUM as 0.7:0.9, LR above 0, MOMENTUM below 1")
    return found


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line; exits with status 2 on bad input."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=tuple(PARTS))
    parser.add_argument("--methods", default="all", help="comma-separated; the part's first one is always trained")
    parser.add_argument("--problems", default="all", help=f"compress: {GPT}, {QUADRATIC}")
    parser.add_argument("--seeds", type=int, default=3, help="how many results (default 3)")
    parser.add_argument("--steps", type=int, help=f"default: compress, adam: {GPT} 400, {QUADRATIC} 1000; local: 1000")
    parser.add_argument("--rates", type=listed(float), help="to choose from, for all problems")
    parser.add_argument("--outers", type=pairs, help=f"local: LR:MOMENTUM,... (default {text_of_pairs(OUTERS)})")
    parser.add_argument("--start", type=int, help="local: synchronous steps at the beginning (default: about a fifth)")
    parser.add_argument("--ranks", type=int, default=RANKS, help=f"or workers (default {RANKS})")
    parser.add_argument("--batch", type=int, help="samples of a rank in a step (default 4; local: 8)")
    parser.add_argument("--jobs", type=int, default=1, help="processes that train at the same time")
    parser.add_argument("--check", action="store_true", help="status 1 when a bar is not held")
    add_outputs(parser, "trainings, rows, settings and machine as JSON", "a bar per row")
    options = parser.parse_args(arguments)
    part = PARTS[options.part]
    check_least(parser, options, seeds=1, ranks=1, jobs=1)
    for name, least in (("steps", PROBE_STEPS), ("start", 0), ("batch", 1)):
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
    if options.part == "local":
        options.outers = options.outers or OUTERS
        if problem := settle_start(options):
            parser.error(problem)
    elif options.outers is not None or options.start is not None:
        parser.error("--outers, --start: of the part local only")
    check_outputs(parser, options)
    return options


def text_of_pairs(outers: Sequence[tuple[float, float]]) -> str:
    """As on the command line."""
    return ",".join(f"{rate:g}:{momentum:g}" for rate, momentum in outers)


def settle_start(options: argparse.Namespace) -> str:
    """Makes the steps after the synchronous ones whole rounds of every method; why that cannot be, or nothing.

    What workers walk after the last round is in no outer step, so it would be lost.
    """
    steps = options.steps or PARTS[options.part][GPT].steps
    rounds = math.lcm(*(method.local["every"] for method in METHODS[options.part].values() if method.local))
    if options.start is None:
        options.start = steps - rounds * max(1, (steps - steps // 5) // rounds)
    alone = steps - options.start
    if options.start < 0:
        return f"--steps is {steps}, must be at least {rounds}: whole rounds of each method"
    if alone < rounds or alone % rounds:
        return f"--steps {steps} after --start {options.start}: {alone} steps are no rounds of {rounds} each"
    return ""


@dataclass(frozen=True)
class Row:
    """A method on a problem, with its best settings. losses: by seed. tried: losses of the seed that has chosen."""

    problem: str
    method: str
    rate: float
    at_edge: bool
    outer: str
    losses: list[float]
    loss: float
    ratio: float
    least: float
    most: float
    tried: dict[str, float]


class Record:
    """The trainings of a --json file, by case; without a file those of this process. ValueError: a file of others."""

    def __init__(self, options: argparse.Namespace, title: str, facts: dict[str, object]) -> None:
        self._options, self._title, self._facts = options, title, facts
        self.known: dict[Case, Outcome] = {}
        if options.json and options.json.exists():
            try:
                for kept in json.loads(options.json.read_text())["trainings"]:
                    case = {**kept["case"], "outer": tuple(map(tuple, kept["case"]["outer"]))}
                    self.known[Case(**case)] = Outcome(**kept["outcome"])
            except (ValueError, KeyError, TypeError) as problem:
                raise ValueError(
                    f"--json {options.json} is there, and has no trainings of this program ({problem!r}): name another"
                ) from None

    def add(self, case: Case, outcome: Outcome) -> None:
        """Keeps it, in the file, too."""
        self.known[case] = outcome
        write(self._options, result_of(self._options, self._title, self._facts, [], [], self.as_json()))

    def as_json(self) -> dict[str, object]:
        """For the file."""
        kept = [{"case": asdict(case), "outcome": asdict(outcome)} for case, outcome in self.known.items()]
        return {"trainings": kept}


class Trainer:
    """Trains many cases, in so many processes, but for those that the record knows, and says how far it is."""

    def __init__(self, jobs: int, record: Record, total: int) -> None:
        self._pool = ProcessPoolExecutor(jobs, get_context("spawn")) if jobs > 1 else None
        self._record, self._total = record, total
        self._done, self._begun = 0, time.monotonic()

    def train(self, cases: Sequence[Case]) -> dict[Case, Outcome]:
        """All of them, in their order."""
        missing = [case for case in cases if case not in self._record.known]
        for case, outcome in self._outcomes(missing):
            self._record.add(case, outcome)
            self._done += 1
            took = time.monotonic() - self._begun
            where = f"{case.problem}, {text_of_case(case)}, seed {case.seed}: {outcome.loss:.4f}"
            left = f"{took / self._done * (self._total - self._done) / 60:.0f} min left"
            print(f"{self._done} of {self._total}: {where}; {left}", file=sys.stderr, flush=True)
        return {case: self._record.known[case] for case in cases}

    def _outcomes(self, cases: Sequence[Case]) -> Iterator[tuple[Case, Outcome]]:
        """As they are there."""
        if self._pool is None:
            yield from ((case, train(case)) for case in cases)
            return
        futures = {self._pool.submit(train, case): case for case in cases}
        yield from ((futures[future], future.result()) for future in as_completed(futures))

    def close(self) -> None:
        """Ends its processes, whatever they do."""
        if self._pool:
            self._pool.shutdown(wait=False, cancel_futures=True)
            for child in active_children():
                child.terminate()


def cases_of(options: argparse.Namespace, problem: str, method: str, seed: int) -> list[Case]:
    """One for each rate, or pair of a rate and an outer one."""
    recipe = PARTS[options.part][problem]
    outers: list[tuple[tuple[str, float], ...]] = [()]
    if METHODS[options.part][method].local:
        outers = [(("outer_lr", lr), ("momentum", m), ("start", options.start)) for lr, m in options.outers]
    steps, batch = options.steps or recipe.steps, options.batch or recipe.batch
    return [
        Case(options.part, problem, method, rate, seed, steps, options.ranks, batch, outer)
        for rate, outer in product(options.rates or recipe.rates, outers)
    ]


def text_of_outer(case: Case) -> str:
    """LR:MOMENTUM; empty where there is none."""
    outer = dict(case.outer)
    return text_of_pairs([(outer["outer_lr"], outer["momentum"])]) if outer else ""


def text_of_case(case: Case) -> str:
    """Its method and settings."""
    outer = text_of_outer(case)
    return f"{case.method}, rate {case.rate:g}" + (f", outer {outer}" if outer else "")


def seeds_of(options: argparse.Namespace) -> range:
    """Those of the results."""
    return range(CHOOSING + 1, CHOOSING + 1 + options.seeds)


def ahead(options: argparse.Namespace, known: Mapping[Case, Outcome]) -> dict[tuple[str, str], int]:
    """How many trainings of each problem and method are not known yet, at most: the choice may fall on a known one."""
    found = {}
    for problem, method in product(options.problems, options.methods):
        choice = cases_of(options, problem, method, CHOOSING)
        found[problem, method] = sum(case not in known for case in choice)
        if found[problem, method] == 0:
            best = min(choice, key=lambda case: known[case].loss)
            found[problem, method] = sum(replace(best, seed=seed) not in known for seed in seeds_of(options))
        else:
            found[problem, method] += options.seeds
    return found


def predicted(options: argparse.Namespace, missing: Mapping[tuple[str, str], int]) -> float:
    """Seconds of so many trainings, by a few steps of every method."""
    total = 0.0
    for (problem, method), count in missing.items():
        case = cases_of(options, problem, method, CHOOSING)[0]
        probe = replace(case, steps=PROBE_STEPS, outer=tuple((name, v) for name, v in case.outer if name != "start"))
        if count:
            if not total:
                train(probe)  # imports what torch has put off
            total += count * case.steps * train(probe).step_seconds
    return total / options.jobs


def row_of(options: argparse.Namespace, trainer: Trainer, problem: str, method: str, first: Row | None) -> Row:
    """Tries all settings with a seed of their own, and the best of them with the others."""
    tried = trainer.train(cases_of(options, problem, method, CHOOSING))
    best = min(tried, key=lambda case: tried[case].loss)
    results = trainer.train([replace(best, seed=seed) for seed in seeds_of(options)])
    losses = [outcome.loss for outcome in results.values()]
    ratios = [a / b for a, b in zip(losses, first.losses if first else losses, strict=True)]
    rates = [case.rate for case in tried]
    return Row(
        problem=problem,
        method=method,
        rate=best.rate,
        at_edge=min(rates) < max(rates) and best.rate in (min(rates), max(rates)),
        outer=text_of_outer(best),
        losses=losses,
        loss=mean(losses),
        ratio=median(ratios),
        least=min(ratios),
        most=max(ratios),
        tried={text_of_case(case): outcome.loss for case, outcome in tried.items()},
    )


HEAD = f"{'problem':<10} {'method':<22}{'rate':>9}{'outer':>10}{'loss':>11}{'ratio':>9}   [least most]"


def text_of(row: Row) -> str:
    """A line of a table for people, below HEAD."""
    rate = f"{row.rate:g}{'*' if row.at_edge else ''}"
    ratios = f"{row.ratio:>9.4f}   [{row.least:.4f} {row.most:.4f}]"
    return f"{row.problem:<10} {row.method:<22}{rate:>9}{row.outer:>10}{row.loss:>11.4f}{ratios}"


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
        name, allowed = AGAINST.get(row.method, ("", 1.0))
        if other := found.get((row.problem, name)):
            share = median(a / b for a, b in zip(other.losses, row.losses, strict=True))
            bars.append(Bar(f"{allowed:g} x loss of {name} / {row.method}'s:", allowed * share, 1))
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
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # unwinds, so that no process stays behind
    title = f"{options.part}: {counted(options.ranks, 'rank')}, {counted(options.seeds, 'seed')}"
    title += f", {counted(options.steps, 'step')}" if options.steps else ""
    facts = head(title)
    try:
        record = Record(options, title, facts)
    except ValueError as problem:
        print(f"quality: {problem}", file=sys.stderr)
        return 2
    missing = ahead(options, record.known)
    total = sum(missing.values())
    print(f"{counted(total, 'training')}, about {predicted(options, missing) / 60:.0f} min\n{HEAD}", flush=True)
    trainer = Trainer(options.jobs, record, total)
    rows = []
    try:
        for row in rows_of(options, trainer):
            print(text_of(row), flush=True)
            rows.append(row)
    finally:
        trainer.close()
    chart = Chart({f"{row.problem}, {row.method}": row.ratio for row in rows}, "of the first method's loss")
    return publish(options, title, facts, [asdict(row) for row in rows], bars_of(rows), chart, record.as_json())


if __name__ == "__main__":
    sys.exit(main())
