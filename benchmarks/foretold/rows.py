"""One number of ranks on one link: what was predicted, then what was measured, and whether it is near enough."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from ringdp.planner.calibration import Calibration, slowest
from ringdp.planner.prediction import predict
from ringdp.planner.units import bandwidth

STEP_BAR, MEMORY_BAR = 0.15, 0.03
HEAD = "ranks  Gb/s   step ms: predicted  measured  ratio   memory MB: predicted  measured  ratio"


@dataclass(frozen=True)
class Row:
    """Seconds and bytes of the slowest, largest rank; 0 where nothing is measured yet."""

    ranks: int
    gigabits: float
    predicted_step: float
    predicted_exposed: float
    predicted_memory: float
    step: float = 0.0
    memory: float = 0.0

    @property
    def wrong(self) -> list[str]:
        """What is farther from its prediction than the bar."""
        pairs = (
            ("step", self.step / self.predicted_step, STEP_BAR),
            ("memory", self.memory / self.predicted_memory, MEMORY_BAR),
        )
        return [
            f"{self.ranks} ranks at {self.gigabits:g} Gb/s: {name} is {ratio:.2f} of what was predicted, bar {bar:.0%}"
            for name, ratio, bar in pairs
            if abs(ratio - 1) > bar
        ]

    @property
    def prediction(self) -> str:
        """A sentence, before anything is measured."""
        parts = f"step {1e3 * self.predicted_step:.1f} ms, {1e3 * self.predicted_exposed:.1f} ms of it exposed"
        where = f"{self.ranks} ranks at {self.gigabits:g} Gb/s"
        return f"predicted: {where}: {parts}; memory {self.predicted_memory / 1e6:.1f} MB"

    def __str__(self) -> str:
        steps = f"{1e3 * self.predicted_step:>20.1f}{1e3 * self.step:>10.1f}{self.step / self.predicted_step:>7.2f}"
        memory = f"{self.predicted_memory / 1e6:>23.1f}{self.memory / 1e6:>10.1f}"
        return f"{self.ranks:>5}{self.gigabits:>6g}{steps}{memory}{self.memory / self.predicted_memory:>7.3f}"


def link_bytes(gigabits: float) -> float:
    """Bytes per second."""
    return bandwidth(f"{gigabits}Gb/s")


def foretold(measured: Calibration, ranks: Sequence[int], rates: Sequence[float]) -> list[Row]:
    """Predictions alone."""
    rows = []
    for n in ranks:
        for rate in rates:
            p = predict(measured, n, link_bytes(rate))
            rows.append(Row(n, rate, p.step, p.exposed, p.memory))
    return rows


def with_measured(row: Row, reports: Sequence[dict[str, Any]]) -> Row:
    """The row, with what the ranks report."""
    return replace(row, step=slowest(reports, "step"), memory=peak(reports))


def peak(reports: Sequence[dict[str, Any]]) -> float:
    """Bytes of the largest rank."""
    return max(report["peak"] for report in reports)
