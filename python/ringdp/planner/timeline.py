"""A step played in time: backward makes buckets ready one by one, a link carries them one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

_BUSIEST = 0.95  # communication leaves compute a little of a core


@dataclass(frozen=True)
class Bucket:
    """ready: share of the backward pass after which it can go. seconds: on its way."""

    ready: float
    seconds: float


@dataclass(frozen=True)
class Played:
    """Seconds. exposed: communication after the backward pass."""

    backward: float
    exposed: float


def play(backward: float, buckets: Sequence[Bucket], busy: float) -> Played:
    """One backward pass of `backward` seconds of compute.

    busy: share of a rank's core that communication takes while it runs; compute goes on with the rest.
    """
    rate = 1 - min(max(busy, 0.0), _BUSIEST)
    waiting = sorted(buckets, key=lambda bucket: bucket.ready)
    now = computed = left = 0.0
    ended = None
    position = 0
    while ended is None:
        while left == 0 and position < len(waiting) and waiting[position].ready * backward <= computed:
            left = waiting[position].seconds
            position += 1
        until = backward if position == len(waiting) or left else min(backward, waiting[position].ready * backward)
        speed = rate if left else 1.0
        passed = (until - computed) / speed
        if left and left < passed:
            passed = left
            computed += passed * speed
        else:
            computed = until
        now += passed
        left = max(0.0, left - passed)
        if computed >= backward:
            ended = now
    return Played(ended, left + sum(bucket.seconds for bucket in waiting[position:]))
