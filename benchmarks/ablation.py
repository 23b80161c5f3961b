#!/usr/bin/env python3
"""What bucketing and overlap are worth: the same training step in four modes, alternating in one run.

    python benchmarks/ablation.py                          # 2 ranks of this host, shared memory
    python benchmarks/ablation.py --hosts 2 --rate 1       # two namespaces, a link of 1 Gb/s each (root)

naive: one blocking all_reduce per named gradient after the backward pass. overlap per parameter: the same, each as soon
as its gradient is there. bucketed: blocking, in buckets. bucketed + overlap: the default. alone: no communication.
Times are medians over rounds, of the rank that computed longest. communication: while a collective was on its way;
exposed: the part of it during which nothing was left to compute. Where the backward pass is long enough for the other
buckets, bucketed + overlap exposes its last bucket only.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from ablation_rank import Job
from runner import machine
from runner.job import run_job
from runner.program import add_outputs, add_places, check_least, check_outputs, check_places, picture, place_of, write


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line; exits with status 2 on bad input."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_places(parser)
    parser.add_argument("--backend", default="ringdp")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--rows", type=int, default=1024, help="samples per rank and step")
    parser.add_argument("--bucket-mb", type=float, default=2.0)
    parser.add_argument("--check", action="store_true", help="status 1 when more than the last bucket is exposed")
    add_outputs(parser, "rows, settings and machine as JSON", "a bar per mode")
    options = parser.parse_args(arguments)
    check_places(parser, options)
    check_least(parser, options, rounds=1, layers=1, width=1, rows=1)
    check_outputs(parser, options)
    return options


def main() -> int:
    """The exit status."""
    options = parse()
    job = Job(options.backend, options.rounds, options.layers, options.width, options.rows, options.bucket_mb)
    facts = machine.describe()
    try:
        reports = run_job("ablation_rank", asdict(job), options.ranks, options.hosts, options.rate)
    except (RuntimeError, ValueError) as problem:
        print(f"ablation: {problem}", file=sys.stderr)
        return 1
    rows = rows_of(reports)
    title = (
        f"{reports[0]['parameters'] / 1e6:.2f} M parameters, {options.ranks} ranks over {options.backend}, "
        f"{place_of(options)}"
    )
    print(f"{title}, {options.rounds} rounds")
    print(machine.sentence(facts))
    print(text_of(rows))
    within, sentence = verdict(rows)
    print(sentence)
    result = {
        "command": shlex.join(["python", *sys.argv]),
        "title": title,
        "machine": facts,
        "job": asdict(job),
        "rows": [asdict(row) for row in rows],
        "verdict": sentence,
    }
    write(options, result)
    if options.plot:
        draw(result, options.plot)
    return int(options.check and not within)


SLACK = 1.10  # times the last bucket's collective, which nothing can hide


@dataclass(frozen=True)
class Row:
    """Medians in seconds. speedup: naive's step over this one's, round by round."""

    mode: str
    step: float
    speedup: float
    communication: float
    exposed: float
    last: float
    collectives: int

    @property
    def hidden(self) -> float:
        """The part of communication that backward has hidden."""
        return 1 - self.exposed / self.communication if self.communication else 1.0


def rows_of(reports: Sequence[dict[str, Any]]) -> list[Row]:
    """One row per mode, in the order of the modes."""
    critical = {name: _critical(reports, name) for name in reports[0]["samples"]}
    naive = [sample["step"] for sample in critical["naive"]]
    rows = []
    for name, samples in critical.items():
        ratios = [base / sample["step"] for base, sample in zip(naive, samples, strict=True)]
        middle = {
            key: median(sample[key] for sample in samples) for key in ("step", "communication", "exposed", "last")
        }
        rows.append(Row(name, speedup=median(ratios), collectives=int(samples[0]["collectives"]), **middle))
    return rows


def _critical(reports: Sequence[dict[str, Any]], name: str) -> list[dict[str, float]]:
    """Per round, the sample of the rank that computed longest: it waits least."""
    by_round = zip(*(own["samples"][name] for own in reports), strict=True)
    return [min(of_ranks, key=lambda sample: sample["exposed"]) for of_ranks in by_round]


def text_of(rows: Sequence[Row]) -> str:
    """A table for people."""
    head = f"{'mode':<22}{'step':>10}{'x naive':>9}{'collectives':>13}{'communication':>15}{'exposed':>10}{'hidden':>8}"
    lines = [head]
    for row in rows:
        lines.append(
            f"{row.mode:<22}{_ms(row.step):>10}{row.speedup:>9.2f}{row.collectives:>13}"
            f"{_ms(row.communication):>15}{_ms(row.exposed):>10}{row.hidden:>8.0%}"
        )
    return "\n".join(lines)


def verdict(rows: Sequence[Row]) -> tuple[bool, str]:
    """Whether bucketed + overlap leaves no more exposed than its last bucket, and the sentence."""
    best = next(row for row in rows if row.mode == "bucketed + overlap")
    within = best.exposed <= SLACK * best.last
    return within, (
        f"exposed communication of bucketed + overlap: {_ms(best.exposed)}, its last bucket takes {_ms(best.last)}: "
        + ("at most that plus 10 %" if within else "MORE than that plus 10 %")
    )


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.1f} ms"


def draw(result: dict[str, Any], path: Path) -> None:
    """Writes the PNG."""
    rows = result["rows"][::-1]
    names = [row["mode"] for row in rows]
    exposed = [1e3 * row["exposed"] for row in rows]
    rest = [1e3 * row["step"] - wait for row, wait in zip(rows, exposed, strict=True)]
    with picture(path, figsize=(7.5, 2.6)) as (figure, axes):
        axes.barh(names, rest, color="#1f4e8c", label="computing, and communication that it hides")
        axes.barh(names, exposed, left=rest, color="#bb3e03", label="exposed communication")
        axes.set_xlabel("step, ms (median)")
        axes.set_title(result["title"], loc="left", fontsize=9)
        figure.legend(loc="outside lower right", ncols=2, frameon=False)


if __name__ == "__main__":
    sys.exit(main())
