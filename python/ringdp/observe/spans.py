"""Sets of moments as sorted spans that do not touch; whole nanoseconds."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable

Span = tuple[int, int]


def union(spans: Iterable[Span]) -> list[Span]:
    """What they cover together; spans that end before they begin cover nothing."""
    joined: list[Span] = []
    for begin, end in sorted(spans):
        if end <= begin:
            continue
        if joined and begin <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((begin, end))
    return joined


def covered(spans: list[Span], begin: int, end: int) -> int:
    """How much of begin..end the result of union() covers."""
    total = 0
    for first, last in spans[max(0, bisect_right(spans, (begin, begin)) - 1) :]:
        if first >= end:
            break
        total += max(0, min(last, end) - max(first, begin))
    return total


def overlap(one: list[Span], other: list[Span]) -> int:
    """How much two results of union() have in common."""
    return sum(covered(other, begin, end) for begin, end in one)
