"""What compression has saved and cost in a step."""

from __future__ import annotations

from dataclasses import dataclass

from ringdp.text.units import byte_size, counted, seconds


@dataclass(frozen=True)
class Entry:
    """Of one bucket, on this rank.

    bytes_whole, bytes_sent: that float32 would have sent to other ranks, and that were sent. seconds: from the bucket's
    start to its mean, codes and their way together. size, owed: norms of the mean, and of what this rank owes.
    """

    bucket: int
    elements: int
    bytes_whole: int
    bytes_sent: int
    seconds: float
    size: float
    owed: float


@dataclass(frozen=True)
class Ledger:
    """Of a step. Print it."""

    method: str
    ranks: int
    steps: int
    buckets: list[Entry]

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
        lines = [title, f"{'bucket':>6}{'float32':>12}{'sent':>12}{'':>9}{'time':>11}{'owed / mean':>13}"]
        for entry in (*self.buckets, self._total()):
            part = f"{entry.bytes_sent / entry.bytes_whole:9.4f}" if entry.bytes_whole else f"{'-':>9}"
            owed = f"{entry.owed / entry.size:13.2f}" if entry.size else f"{'-':>13}"
            name = "all" if entry.bucket < 0 else str(entry.bucket)
            lines.append(
                f"{name:>6}{byte_size(entry.bytes_whole):>12}{byte_size(entry.bytes_sent):>12}{part}"
                f"{seconds(entry.seconds):>11}{owed}"
            )
        return "\n".join(lines)

    def _total(self) -> Entry:
        sums = [
            sum(getattr(entry, name) for entry in self.buckets) for name in ("elements", "bytes_whole", "bytes_sent")
        ]
        size, owed = (sum(getattr(entry, name) ** 2 for entry in self.buckets) ** 0.5 for name in ("size", "owed"))
        return Entry(-1, *sums, sum(entry.seconds for entry in self.buckets), size, owed)
