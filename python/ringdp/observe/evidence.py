"""From traces to the table that `ringdp blame` judges."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from ringdp.observe.blame import Table, Work
from ringdp.observe.collectives import Collective, collectives
from ringdp.observe.dump import Dump, TraceError, missing_ranks, read_folder
from ringdp.observe.spans import overlap, union
from ringdp.observe.steps import Step, steps_of, waits_of

_NS = 1e-9
WARM_UP = 1  # collectives of each group that are left out: their ranks come from starting up, not from training


def table_of_folder(folder: Path) -> Table:
    """Of all ranks' traces there. TraceError when one is missing, or nothing can be compared."""
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
    """By names that are the same on all ranks: the number, and how many steps of that number come later.

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
    """Of each collective, which step of its first rank it was called in; -1: in none that is known."""
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
