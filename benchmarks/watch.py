#!/usr/bin/env python3
"""What ringdp.watch costs: blocks of the same training steps with it and without it, in turn in one run.

    python benchmarks/watch.py                                  # 2 ranks, steps of 20 ms, 24 pairs of blocks
    python benchmarks/watch.py --wrapper torch --backend gloo

ratio: the median over pairs of the median step with it over that without it; between: half of all pairs. own share: of
a step's time, by clocks inside the watch: in the training thread (by the wall, and what it has computed there) and what
its own thread has computed, which runs beside the training. Medians over pairs, of the rank with the largest share.
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
    parser.add_argument("--check", action="store_true", help="status 1 when its own share is above half a percent")
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
    training_thread: float
    training_thread_computed: float
    own_thread: float

    @property
    def own(self) -> float:
        """All that the watch computes."""
        return self.training_thread_computed + self.own_thread

    def __str__(self) -> str:
        low, high = self.between
        return (
            f"step {self.step_ms:.1f} ms; ratio {self.ratio:.4f}, between {low:.4f} and {high:.4f}; own share: "
            f"training thread {self.training_thread:.2%} (computed {self.training_thread_computed:.2%}), own thread "
            f"{self.own_thread:.2%}"
        )


def cost_of(reports: Sequence[dict[str, Any]]) -> Cost:
    """Ranks step together, so times are those of rank 0."""
    pairs = reports[0]["pairs"]
    ratios = [pair["on"][0] / pair["off"][0] for pair in pairs]
    low, _, high = quantiles(ratios, n=4)
    shares = {
        name: max(median(pair[name] for pair in report["pairs"]) for report in reports)
        for name in ("in_steps", "in_steps_computed", "in_thread")
    }
    step = 1e3 * median(pair["off"][0] for pair in pairs)
    return Cost(step, median(ratios), (low, high), *shares.values())


def main() -> int:
    """The exit status."""
    options = parse()
    names = ("backend", "wrapper", "pairs", "steps", "step_ms", "layers", "width")
    job = Job(**{name: getattr(options, name) for name in names})
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
