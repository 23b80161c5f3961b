"""The largest micro-batch that fits: doubled until it does not, then halved in between. C8's fourth step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Found:
    """The largest micro-batch with what it needs, and the next one tried, which does not fit; bytes.

    0 samples: not even one fits. `too_large` is None when as many as may be tried fit.
    """

    samples: int
    needed: float
    too_large: int | None
    tried: tuple[tuple[int, float], ...]


def largest(needed: Callable[[int], float], room: float, most: int) -> Found:
    """needed(samples): bytes that a rank holds, which must not fall as samples grow. most: samples to try."""
    tried: dict[int, float] = {}

    def fits(samples: int) -> bool:
        tried[samples] = needed(samples)
        return tried[samples] <= room

    below, above = 0, 1
    while below < most and fits(above):
        below, above = above, min(2 * above, most)
    beyond = above if below < most else None
    while beyond is not None and beyond - below > 1:
        middle = (below + beyond) // 2
        below, beyond = (middle, beyond) if fits(middle) else (below, middle)
    return Found(below, tried.get(below, 0.0), beyond, tuple(tried.items()))
