"""From samples to rows: medians over rounds, of the rank of each round that computed longest; ratios within a round.

All ranks end a step together; how long others wait for the one that computes longest is no communication.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

SLACK = 1.10  # of the last bucket's collective, which nothing can hide


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


def rows_of(everyones: Sequence[dict[str, Any]]) -> list[Row]:
    """One row per mode, in the order of the modes."""
    critical = {name: _critical(everyones, name) for name in everyones[0]["samples"]}
    naive = [sample["step"] for sample in critical["naive"]]
    rows = []
    for name, samples in critical.items():
        ratios = [base / sample["step"] for base, sample in zip(naive, samples, strict=True)]
        middle = {
            key: median(sample[key] for sample in samples) for key in ("step", "communication", "exposed", "last")
        }
        rows.append(Row(name, speedup=median(ratios), collectives=int(samples[0]["collectives"]), **middle))
    return rows


def _critical(everyones: Sequence[dict[str, Any]], name: str) -> list[dict[str, float]]:
    """Per round, the sample of the rank that computed longest: it waits least."""
    by_round = zip(*(own["samples"][name] for own in everyones), strict=True)
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
