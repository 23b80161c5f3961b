#!/usr/bin/env python3
"""What ringdp.watch costs: blocks of the same training steps with it and without it, in turn in one run.

--faults: how many steps it takes until a planted straggler (10 ms), drift (of one element) and lost overlap (10 ms) are
named; and what is said in 2,000 steps without a fault.

    python benchmarks/watch.py                                  # 2 ranks, steps of 20 ms, 24 pairs of blocks
    python benchmarks/watch.py --wrapper torch --backend gloo
    python benchmarks/watch.py --faults 10                      # each of them 10 times

ratio: the median over pairs of the median step with it over that without it, by the wall and by what the training
thread has computed; between: half of all pairs. own share: what the watch has computed, of a step's time, in the
training thread and in its own, which runs beside the training: medians over pairs, of the rank with the largest share.
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

from runner import machine
from runner.job import run_job
from runner.program import check_least, write
from watch_rank import WRAPPERS, Job

LIMIT = 0.005  # of a step
LIMIT_STEPS = 50


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line; exits with status 2 on bad input."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--backend", default="ringdp")
    parser.add_argument("--wrapper", choices=list(WRAPPERS), default="ringdp")
    parser.add_argument("--pairs", type=int, default=24)
    parser.add_argument("--steps", type=int, default=40, help="of a block")
    parser.add_argument("--step-ms", type=float, default=20.0)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--faults", type=int, metavar="SEEDS", default=0)
    parser.add_argument(
        "--check", action="store_true", help="status 1 when its share is above half a percent, a fault is named late"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the pairs, settings and machine as JSON")
    options = parser.parse_args(arguments)
    check_least(parser, options, ranks=2, pairs=2, steps=1, step_ms=0.1, layers=1, width=1)
    return options


@dataclass(frozen=True)
class Cost:
    """Medians over pairs; the shares are of the step's time."""

    step_ms: float
    ratio: float
    between: tuple[float, float]
    computed_ratio: float
    computed_between: tuple[float, float]
    training_thread: float
    own_thread: float

    @property
    def own(self) -> float:
        """All that the watch computes."""
        return self.training_thread + self.own_thread

    def __str__(self) -> str:
        return (
            f"step {self.step_ms:.1f} ms; ratio {_with_range(self.ratio, self.between)}, of what is computed "
            f"{_with_range(self.computed_ratio, self.computed_between)}; own share: training thread "
            f"{self.training_thread:.2%}, own thread {self.own_thread:.2%}"
        )


def _with_range(ratio: float, between: tuple[float, float]) -> str:
    return f"{ratio:.4f} (between {between[0]:.4f} and {between[1]:.4f})"


def _ratio(pairs: Sequence[dict[str, Any]], clock: int) -> tuple[float, tuple[float, float]]:
    low, middle, high = quantiles((pair["on"][clock] / pair["off"][clock] for pair in pairs), n=4)
    return middle, (low, high)


def cost_of(reports: Sequence[dict[str, Any]]) -> Cost:
    """Ranks step together, so times are those of rank 0."""
    pairs = reports[0]["pairs"]
    shares = {
        name: max(median(pair[name] for pair in report["pairs"]) for report in reports)
        for name in ("in_training", "in_thread")
    }
    step = 1e3 * median(pair["off"][0] for pair in pairs)
    return Cost(step, *_ratio(pairs, 0), *_ratio(pairs, 1), *shares.values())


def named_after(run: dict[str, Any]) -> int | None:
    """Steps since the fault was planted until it was said; of a straggler only if it is the right rank."""
    wanted = f"ringdp.watch: {run['fault']}:"
    rank = f" rank {run['victim']} " if run["fault"] == "straggler" else ""
    return next((step for step, line in run["said"] if step >= 0 and line.startswith(wanted) and rank in line), None)


def faults(options: argparse.Namespace, job: Job) -> int:
    """Prints the steps until each was named; the exit status."""
    result = run_job("watch_faults", {**asdict(job), "seeds": options.faults}, options.ranks)[0]
    late = False
    for fault in ("straggler", "drift", "overlap"):
        runs = [run for run in result["runs"] if run["fault"] == fault]
        steps = [named_after(run) for run in runs]
        other = [line for run in runs for step, line in run["said"] if step < 0 or f" {fault}:" not in line]
        late |= any(number is None or number > LIMIT_STEPS for number in steps)
        print(f"{fault}: named after {', '.join('never' if n is None else str(n) for n in steps)} steps")
        print("".join(f"  also said: {line}\n" for line in other), end="")
    print(f"without a fault: {len(result['healthy'])} lines")
    print("".join(f"  step {step}: {line}\n" for step, line in result["healthy"]), end="")
    write(options, {"command": shlex.join(["python", *sys.argv]), "machine": machine.describe(), **result})
    return int(options.check and late)


def main() -> int:
    """The exit status."""
    options = parse()
    names = ("backend", "wrapper", "pairs", "steps", "step_ms", "layers", "width")
    job = Job(**{name: getattr(options, name) for name in names})
    if options.faults:
        return faults(options, job)
    facts = machine.describe()
    try:
        reports = run_job("watch_rank", asdict(job), options.ranks)
    except (RuntimeError, ValueError) as problem:
        print(f"watch: {problem}", file=sys.stderr)
        return 1
    cost = cost_of(reports)
    print(
        f"{reports[0]['parameters'] / 1e6:.2f} M parameters, {options.ranks} ranks, {options.wrapper}'s wrapper over "
        f"{options.backend}, {options.pairs} pairs of blocks of {options.steps} steps"
    )
    print(machine.sentence(facts))
    print(cost)
    print(f"{'within' if cost.own <= LIMIT else 'MORE THAN'} {LIMIT:.1%} of a step")
    result = {"command": shlex.join(["python", *sys.argv]), "machine": facts, "job": asdict(job), "cost": asdict(cost)}
    write(options, {**result, "pairs": [report["pairs"] for report in reports]})
    return int(options.check and cost.own > LIMIT)


if __name__ == "__main__":
    sys.exit(main())
