"""How many micro-batches each rank runs in a step: as many as its speed allows. No bit depends on it."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

_WORTH = 0.95  # of the time of a step; a smaller gain is noise


def by_speed(micro_batches: int, leaf_seconds: Sequence[float]) -> list[int]:
    """Shares that end the step soonest, from what one leaf takes on each rank (above 0). Equal on all ranks."""
    shares = [0] * len(leaf_seconds)
    ends = [(seconds, rank) for rank, seconds in enumerate(leaf_seconds)]
    heapq.heapify(ends)
    for _ in range(micro_batches):
        end, rank = ends[0]
        shares[rank] += 1
        heapq.heapreplace(ends, (end + leaf_seconds[rank], rank))
    return shares


def step_seconds(shares: Sequence[int], leaf_seconds: Sequence[float]) -> float:
    """When the last rank has run its leaves."""
    return max(share * seconds for share, seconds in zip(shares, leaf_seconds, strict=True))


def improved(shares: Sequence[int], leaf_seconds: Sequence[float]) -> list[int]:
    """Other shares where they are worth it; these where they are not, or where the speed of a rank is unknown (0)."""
    if not all(seconds > 0 for seconds in leaf_seconds):
        return list(shares)
    better = by_speed(sum(shares), leaf_seconds)
    gains = step_seconds(better, leaf_seconds) < _WORTH * step_seconds(shares, leaf_seconds)
    return better if gains else list(shares)
