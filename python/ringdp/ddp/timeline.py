"""The truth about overlap: when each bucket of the latest step was ready, launched and done, and what backward hid."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ringdp.text.units import ms

_NS = 1e-9


@dataclass(frozen=True)
class BucketTimes:
    """Seconds since the backward pass began. ready: its last gradient arrived; done: its collective ended."""

    ready: float
    launched: float
    done: float


@dataclass(frozen=True)
class StepTimes:
    """The latest synchronised step on this rank, in seconds.

    forward: the forward pass. backward: computing gradients. wait: from there until every gradient was in place.
    """

    step: int
    forward: float
    backward: float
    wait: float
    buckets: tuple[BucketTimes, ...]

    @property
    def communication(self) -> float:
        """While at least one collective was on its way."""
        return union((b.launched, b.done) for b in self.buckets)

    @property
    def exposed(self) -> float:
        """The part of it during which nothing was left to compute."""
        return union((max(b.launched, self.backward), b.done) for b in self.buckets)

    @property
    def overlap(self) -> float:
        """The part of communication that the backward pass has hidden, 0 to 1; 1 where there was none."""
        return 1 - self.exposed / self.communication if self.communication else 1.0

    @property
    def verdict(self) -> str:
        """One plain sentence."""
        if not self.buckets:
            return "No step has been synchronised yet."
        if not self.communication:
            return "There was nothing to communicate."
        if self.overlap <= 0:
            return (
                "0 % of the communication was hidden: every bucket was launched after the last gradient. "
                "Smaller buckets (bucket_cap_mb), overlap=True, or a model of more than one bucket would hide some."
            )
        return f"{self.overlap:.0%} of the communication was hidden behind the backward pass."

    def __str__(self) -> str:
        head = (
            f"step {self.step}: forward {ms(self.forward)}, backward {ms(self.backward)}, then {ms(self.wait)} of "
            f"waiting; communication {ms(self.communication)}, exposed {ms(self.exposed)}. {self.verdict}"
        )
        rows = [
            f"  bucket {number}: ready {ms(b.ready)}, launched {ms(b.launched)}, done {ms(b.done)}"
            for number, b in enumerate(self.buckets)
        ]
        return "\n".join([head, *rows])


def step_times(raw: Mapping[str, Any]) -> StepTimes:
    """From what the reducer has noted, in nanoseconds; buckets that did not travel are left out."""
    start = raw["backward"]
    buckets = tuple(BucketTimes(*((t - start) * _NS for t in times)) for times in raw["buckets"] if all(times))
    computed = raw["computed"] or start
    return StepTimes(
        step=raw["step"],
        forward=(start - raw["forward"]) * _NS,
        backward=(computed - start) * _NS,
        wait=(max(raw["finished"], computed) - computed) * _NS,
        buckets=buckets,
    )


def union(intervals: Iterable[tuple[float, float]]) -> float:
    """The length of what the intervals cover together; those that end before they begin count nothing."""
    length, reached = 0.0, float("-inf")
    for begin, end in sorted(intervals):
        if end > max(begin, reached):
            length += end - max(begin, reached)
            reached = end
    return length
