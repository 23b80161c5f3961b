"""What planner.py compares: predicted step time and memory, what was measured, and whether it is close enough."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ringdp.tools.planner import workload
from ringdp.tools.planner.calibration import Calibration, slowest
from ringdp.tools.planner.prediction import memory, predict
from ringdp.tools.planner.probe import counted
from ringdp.tools.planner.units import bandwidth
from runner.program import picture

STEP_BAR, MEMORY_BAR = 0.15, 0.03
STEP_HEAD = "ranks  Gb/s   step ms: predicted  measured  ratio   memory MB: predicted  measured  ratio"


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


def predicted_steps(measured: Calibration, ranks: Sequence[int], rates: Sequence[float]) -> list[Row]:
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


MEMORY_HEAD = f"{'memory of':<38}predicted MB  measured  ratio"


@dataclass(frozen=True)
class MemoryRow:
    """Bytes of the largest rank; measured is 0 until it is."""

    model: str
    micro_batch: int
    ranks: int
    stage: int
    predicted: float = 0.0
    measured: float = 0.0

    @property
    def name(self) -> str:
        """As in a sentence."""
        return f"{self.model}, micro-batch {self.micro_batch}, {self.ranks} ranks, stage {self.stage}"

    @property
    def wrong(self) -> list[str]:
        """A sentence when it is farther from its prediction than the bar."""
        ratio = self.measured / self.predicted
        far = abs(ratio - 1) > MEMORY_BAR
        return [f"{self.name}: memory is {ratio:.2f} of what was predicted, bar {MEMORY_BAR:.0%}"] if far else []

    def __str__(self) -> str:
        ratio = self.measured / self.predicted
        return f"{self.name:<38}{self.predicted / 1e6:>12.1f}{self.measured / 1e6:>10.1f}{ratio:>7.3f}"


def case(text: str) -> MemoryRow:
    """MODEL/MICRO-BATCH/STAGE, as gpt/8/0; nothing is predicted yet, and ranks are to be given."""
    model, micro_batch, stage = text.split("/")
    return MemoryRow(model, int(micro_batch), 0, int(stage))


def predicted_memory(found: Calibration, cases: Sequence[MemoryRow], ranks: int) -> list[MemoryRow]:
    """Predictions alone."""
    rows = [replace(row, ranks=ranks) for row in cases]
    return [replace(row, predicted=_predicted(found, row)) for row in rows]


def _predicted(found: Calibration, row: MemoryRow) -> float:
    sizes = counted(workload.load(row.model), row.micro_batch)
    return memory(replace(found, **sizes), row.ranks, row.stage)


def with_peak(row: MemoryRow, reports: Sequence[dict[str, Any]]) -> MemoryRow:
    """The row, with what the ranks report."""
    return replace(row, measured=peak(reports))


def draw(result: dict[str, Any], path: Path) -> None:
    """Writes the PNG."""
    rows = result["rows"]
    names = [f"{row['ranks']} ranks, {row['gigabits']:g} Gb/s" for row in rows]
    places = range(len(rows))
    with picture(path, figsize=(7.5, 0.4 * len(rows) + 1.2)) as (figure, axes):
        columns = (("predicted_step", "predicted", 0.2, "#94a9c9"), ("step", "measured", -0.2, "#1f4e8c"))
        for key, label, shift, colour in columns:
            at, widths = [place + shift for place in places], [1e3 * row[key] for row in rows]
            axes.barh(at, widths, 0.38, label=label, color=colour)
        axes.set_yticks(list(places), names)
        axes.invert_yaxis()
        axes.set_xlabel("step, ms (median)")
        axes.set_title(result["title"], loc="left", fontsize=9)
        figure.legend(loc="outside lower right", ncols=2, frameon=False)
