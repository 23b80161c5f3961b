"""From traces to the table that `ringdp blame` judges: each rank's work in each of its steps, and its waits."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ringdp.tools.observe.blame import Table, Work
from ringdp.tools.observe.traces import Collective, Dump, Event, TraceError, collectives, missing_ranks, read_folder

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


_NS = 1e-9
WARM_UP = 1  # collectives of each group that are left out: their ranks come from starting up, not from training


def table_of_folder(folder: Path) -> Table:
    """The table of all ranks' traces there. TraceError when one is missing, or nothing can be compared."""
    dumps = read_folder(folder)
    if missing := missing_ranks(dumps):
        raise TraceError(f"{folder} has no trace of ranks {missing}: blame needs those of all ranks of the job")
    return table_of(dumps)


def table_of(dumps: Sequence[Dump]) -> Table:
    """TraceError when no collective of two ranks or more is there as a whole."""
    rows = [row for row in collectives(dumps) if row.seq > WARM_UP and row.whole and len(row.members) > 1]
    if not rows:
        raise TraceError(
            "no collective is in the traces of all its ranks: nothing to compare (RINGDP_TRACE_EVENTS too small?)"
        )
    steps = {dump.rank: _numbered(steps_of(dump)) for dump in dumps}
    return Table(
        seconds=_NS * max(_length(rows, dump.rank) for dump in dumps),
        waits=[{rank: _NS * side.wait for rank, side in row.sides.items()} for row in rows],
        within=_within(rows, steps),
        steps=_work(steps),
        full=_full(rows),
        held={dump.rank: _NS * _held(dump, rows) for dump in dumps},
    )


def _length(rows: Sequence[Collective], rank: int) -> int:
    sides = [row.sides[rank] for row in rows if rank in row.sides]
    return max((s.ended for s in sides), default=0) - min((s.enqueued or s.started for s in sides), default=0)


_Name = tuple[int, int]


def _numbered(steps: Sequence[Step]) -> dict[_Name, Step]:
    """Steps by names that are the same on all ranks: the number, and how many steps of that number come later.

    Every model that is wrapped counts from 1, and rings lose the oldest.
    """
    later: Counter[int] = Counter()
    named = {}
    for step in reversed(steps):
        named[step.number, later[step.number]] = step
        later[step.number] += 1
    return named


def _work(steps: Mapping[int, Mapping[_Name, Step]]) -> list[dict[int, Work]]:
    by_name: dict[_Name, dict[int, Work]] = {}
    for rank, of_rank in steps.items():
        for name, step in of_rank.items():
            by_name.setdefault(name, {})[rank] = Work(_NS * step.data, _NS * step.compute)
    return list(by_name.values())


def _within(rows: Sequence[Collective], steps: Mapping[int, Mapping[_Name, Step]]) -> list[int]:
    """For each collective the step of its first rank in which it was called; -1: in none that is known."""
    ordered = {rank: sorted(step.began for step in of_rank.values()) for rank, of_rank in steps.items()}
    return [bisect_right(ordered[row.members[0]], row.sides[row.members[0]].enqueued) - 1 for row in rows]


def _full(rows: Sequence[Collective]) -> dict[tuple[int, int], tuple[float, int]]:
    links: dict[tuple[int, int], tuple[float, int]] = {}
    for row in rows:
        for rank, side in row.sides.items():
            for peer, (size, ns) in side.backlogs.items():
                seconds, before = links.get((rank, peer), (0.0, 0))
                links[rank, peer] = (seconds + _NS * ns, before + size)
    return links


def _held(dump: Dump, rows: Sequence[Collective]) -> int:
    sides = [row.sides[dump.rank] for row in rows if dump.rank in row.sides]
    return overlap(waits_of(dump), union((side.arrived, side.ended) for side in sides))
