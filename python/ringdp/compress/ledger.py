"""What compression has saved and cost in a step."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from ringdp.compress.methods import Decision
from ringdp.text.units import byte_size, counted, seconds


@dataclass(frozen=True)
class Norms:
    """Of one bucket, on this rank, in one step: some steps have them.

    meant: of what was to be sent: gradients and residuals. error: of what codes have left out of that. mean, residual:
    of the mean, and of what this rank adds to the next step's gradients; at stage 2 both of its shard.
    """

    step: int
    meant: float
    error: float
    mean: float
    residual: float


@dataclass(frozen=True)
class Entry:
    """Of one bucket, on this rank.

    bytes_whole, bytes_sent: that float32 would have sent to other ranks, and that were sent. codes, way: seconds of
    this rank's computing, and of waiting for others and for links.
    """

    bucket: int
    elements: int
    bytes_whole: int
    bytes_sent: int
    codes: float
    way: float
    norms: Norms


@dataclass(frozen=True)
class Ledger:
    """Of the latest step that was compressed. Print it.

    exposed: seconds for which the latest step, compressed or not, waited for buckets after its backward pass.
    decisions: of compress="auto:...", each a step and what holds from it on, for `ringdp.compress.Auto`.
    """

    method: str
    ranks: int
    steps: int
    buckets: list[Entry]
    exposed: float = 0.0
    decisions: list[Decision] = field(default_factory=list)

    @property
    def bytes_sent(self) -> int:
        """By this rank to others."""
        return sum(entry.bytes_sent for entry in self.buckets)

    @property
    def bytes_whole(self) -> int:
        """That float32 would have sent."""
        return sum(entry.bytes_whole for entry in self.buckets)

    def __str__(self) -> str:
        title = f"{self.method} among {counted(self.ranks, 'rank')}, after {counted(self.steps, 'step')}"
        heads = f"{'bucket':>6}{'float32':>12}{'sent':>12}{'':>9}{'codes':>11}{'way':>11}{'error':>9}{'residual':>10}"
        lines = [title, heads]
        for entry in (*self.buckets, self._total()):
            part = _ratio(entry.bytes_sent, entry.bytes_whole, 9, 4)
            error, residual = (
                _ratio(entry.norms.error, entry.norms.meant, 9, 4),
                _ratio(entry.norms.residual, entry.norms.mean, 10, 2),
            )
            name = "all" if entry.bucket < 0 else str(entry.bucket)
            lines.append(
                f"{name:>6}{byte_size(entry.bytes_whole):>12}{byte_size(entry.bytes_sent):>12}{part}"
                f"{seconds(entry.codes):>11}{seconds(entry.way):>11}{error}{residual}"
            )
        if self.buckets:
            lines.append(f"error, and residual / mean: of step {self.buckets[0].norms.step}")
        lines.append(f"exposed in the latest step: {seconds(self.exposed)}")
        lines += [f"from step {step} on: {mode}" for step, mode in self.decisions]
        return "\n".join(lines)

    def _total(self) -> Entry:
        sums = (
            sum(getattr(entry, name) for entry in self.buckets) for name in ("elements", "bytes_whole", "bytes_sent")
        )
        codes, way = (sum(getattr(entry, name) for entry in self.buckets) for name in ("codes", "way"))
        norms = (
            math.hypot(*(getattr(entry.norms, name) for entry in self.buckets))
            for name in ("meant", "error", "mean", "residual")
        )
        return Entry(-1, *sums, codes, way, Norms(0, *norms))


def _ratio(part: float, whole: float, width: int, digits: int) -> str:
    return f"{part / whole:{width}.{digits}f}" if whole else f"{'-':>{width}}"
