"""What a measuring rank is told, and what all ranks tell: both as JSON."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ProbeJob:
    """steps: of each kind at most, after two to warm up; fewer when they would take longer than `seconds`.

    sizes: bytes of all-reduces, () to measure none. bucket_mb: as DDP's. alone: whether to measure compute without
    communication too.
    """

    workload: str
    micro_batch: int
    steps: int
    sizes: tuple[int, ...]
    zero_stage: int = 0
    bucket_mb: float = 25.0
    alone: bool = True
    seconds: float = 2.5
