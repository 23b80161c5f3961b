"""What the programs have in common at their end: bars that a measurement has to reach, JSON, a picture, a status."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from race import machine


@dataclass(frozen=True)
class Bar:
    """A number that must be at least `least`."""

    what: str
    measured: float
    least: float

    @property
    def held(self) -> bool:
        """Whether it is."""
        return self.measured >= self.least

    def __str__(self) -> str:
        verdict = "held" if self.held else "NOT HELD"
        return f"{verdict}: {self.what} {self.measured:.2f}, must be at least {self.least:g}"


@dataclass(frozen=True)
class Chart:
    """A horizontal line per name, `unit` to the right."""

    values: Mapping[str, float]
    unit: str


def publish(
    options: argparse.Namespace,
    title: str,
    facts: dict[str, object],
    rows: Sequence[Mapping[str, Any]],
    bars: Sequence[Bar],
    chart: Chart,
) -> int:
    """Bars to the screen, everything into the files that were asked for. 1 when --check finds a bar not held."""
    for bar in bars:
        print(bar)
    settings = {k: v for k, v in vars(options).items() if not isinstance(v, Path) and v is not None}
    result = {
        "command": shlex.join(["python", *sys.argv]),
        "title": title,
        "machine": facts,
        "settings": settings,
        "rows": [dict(row) for row in rows],
        "bars": [{**asdict(bar), "held": bar.held} for bar in bars],
    }
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n")
    if options.plot:
        from shards.plot import draw

        draw(chart, title, options.plot)
    return int(options.check and not all(bar.held for bar in bars))


def head(title: str) -> dict[str, object]:
    """Prints what is measured and on what; the facts of the machine."""
    facts = machine.describe()
    print(title)
    print(machine.sentence(facts), flush=True)
    return facts
