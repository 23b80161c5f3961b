"""Memory of what the calibration has not seen: another batch, another ZeRO stage, another model; then measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from ringdp.planner import workload
from ringdp.planner.calibration import Calibration
from ringdp.planner.prediction import memory
from ringdp.planner.probe import counted

from foretold.rows import MEMORY_BAR, peak

HEAD = f"{'memory of':<38}predicted MB  measured  ratio"


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


def unseen(found: Calibration, cases: Sequence[MemoryRow], ranks: int) -> list[MemoryRow]:
    """Predictions alone."""
    rows = [replace(row, ranks=ranks) for row in cases]
    return [replace(row, predicted=_predicted(found, row)) for row in rows]


def _predicted(found: Calibration, row: MemoryRow) -> float:
    sizes = counted(workload.load(row.model), row.micro_batch)
    return memory(replace(found, **sizes), row.ranks, row.stage)


def with_peak(row: MemoryRow, reports: Sequence[dict[str, Any]]) -> MemoryRow:
    """The row, with what the ranks report."""
    return replace(row, measured=peak(reports))
