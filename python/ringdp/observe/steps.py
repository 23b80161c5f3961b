"""What each rank did in each of its steps: seconds of work, without the time in which it was held by a wait.

Durations on one rank's own clock; they can be compared between ranks although clocks cannot.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ringdp.observe.dump import Dump, Event
from ringdp.observe.spans import Span, covered, union


@dataclass(frozen=True)
class Step:
    """One synchronised step of ringdp.DistributedDataParallel, in nanoseconds.

    data: from the end of the step before to this forward pass: the loader, but also the optimizer and logging.
    compute: forward and backward until nothing was left to compute. began, ended: on the rank's clock; a step
    ends when its gradients are in place.
    """

    number: int
    began: int
    ended: int
    data: int
    compute: int


def steps_of(dump: Dump) -> list[Step]:
    """All steps of which every mark is there, in order; the first of a run has none before it, and is left out."""
    waits = waits_of(dump)
    steps, before = [], 0

    def work(begin: int, end: int) -> int:
        return end - begin - covered(waits, begin, end)

    for marks in _marks(dump.events):
        forward, computed, stepped = (marks[kind] for kind in ("forward", "computed", "stepped"))
        if before:
            steps.append(Step(marks["step"], before, stepped, work(before, forward), work(forward, computed)))
        before = stepped
    return steps


def waits_of(dump: Dump) -> list[Span]:
    """When some thread of the rank was held by a wait for a collective or message."""
    return union((event.time - event.ns, event.time) for event in dump.events if event.kind == "waited")


def _marks(events: Iterable[Event]) -> Iterable[dict[str, int]]:
    marks: dict[str, int] = {}
    for event in events:
        if event.kind == "forward":
            marks = {"step": event.seq}
        if event.kind in ("forward", "computed", "stepped") and event.seq == marks.get("step"):
            marks[event.kind] = event.time
        if event.kind == "stepped" and len(marks) == 4:
            yield marks
            marks = {}
