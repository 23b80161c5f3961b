"""All ranks' traces as one Chrome trace (JSON), for ui.perfetto.dev or chrome://tracing.

A rank is a process; in elastic jobs it is a member. Its lanes: one for steps (forward, backward, exposed communication,
and how long elastic.survive took to begin a world), one for buckets, one per
process group for its collectives, and one per thread that waited. A collective is drawn as what it went through:
queued, waiting for ranks, moving bytes. An arrow goes from the last rank that entered to those that waited for it.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ringdp.text.units import counted
from ringdp.tools.observe.traces import Collective, Dump, Event, collectives

# Collectives with a root, in which some ranks may be done long before the last one; all others end together.
_ROOTED = ("broadcast", "reduce", "gather", "scatter")


@dataclass(frozen=True)
class Offset:
    """Nanoseconds to add to a rank's clock.

    spread: of the estimates' middle half. how: "shared", "matched" or "wall".
    """

    ns: int
    spread: int = 0
    how: str = "shared"


def offsets(dumps: Sequence[Dump], rows: Sequence[Collective]) -> dict[int, Offset]:
    """Offsets by rank, to the first rank's clock; from wall clocks where two hosts have no collective in common."""
    reference = dumps[0]
    boots = {dump.rank: dump.boot for dump in dumps}
    differences: dict[str, list[int]] = {}
    for row in rows:
        if row.name in ("", *_ROOTED) or not row.whole:
            continue
        here = [side.ended for rank, side in row.sides.items() if boots.get(rank) == reference.boot]
        for rank, side in row.sides.items():
            if here and boots.get(rank, reference.boot) != reference.boot:
                differences.setdefault(boots[rank], []).append(int(statistics.median(here)) - side.ended)
    return {dump.rank: _offset(dump, reference, differences.get(dump.boot, [])) for dump in dumps}


def _offset(dump: Dump, reference: Dump, differences: list[int]) -> Offset:
    if dump.boot == reference.boot:
        return Offset(0)
    if not differences:
        return Offset((dump.wall - dump.steady) - (reference.wall - reference.steady), how="wall")
    spread = 0
    if len(differences) > 1:
        low, _, high = statistics.quantiles(differences, n=4)
        spread = int(high - low)
    return Offset(int(statistics.median(differences)), spread, "matched")


STEPS, BUCKETS, FIRST_GROUP = 1, 2, 10  # lanes
THREADS = 1 << 20  # and the system's number of the thread, which in a container may be as small as any lane's
Slice = dict[str, Any]


def chrome_trace(dumps: Sequence[Dump]) -> dict[str, Any]:
    """The whole trace as Chrome's JSON object; times in microseconds from the first event of any rank."""
    rows = collectives(dumps)
    clock = offsets(dumps, rows)
    lanes = _group_lanes(rows)
    slices = [s for dump in dumps for s in _of_rank(dump, lanes)]
    slices += [s for row in rows for s in _of_collective(row, lanes[row.group], clock)]
    start = min((s["ts"] + clock[s["pid"]].ns for s in slices if "ts" in s), default=0)
    for s in slices:
        if "ts" in s:
            s["ts"] = (s["ts"] + clock[s["pid"]].ns - start) / 1e3
        if "dur" in s:
            s["dur"] /= 1e3
    slices.sort(key=lambda s: s.get("ts", -1.0))
    return {"traceEvents": slices, "displayTimeUnit": "ms", "otherData": _about(dumps, clock)}


def _about(dumps: Sequence[Dump], clock: Mapping[int, Offset]) -> dict[str, str]:
    about = {}
    for dump in dumps:
        how = clock[dump.rank]
        text = f"pid {dump.pid} on {dump.host}, clock {how.how}"
        text += f" within {how.spread / 1e3:.0f} us" if how.how == "matched" else ""
        text += ", older events were overwritten" if dump.overwritten else ""
        text += f", {dump.lost} events lost" if dump.lost else ""
        about[f"rank {dump.rank}"] = text
    return about


def _group_lanes(rows: Iterable[Collective]) -> dict[str, int]:
    names = dict.fromkeys(row.group for row in rows)
    return {name: FIRST_GROUP + number for number, name in enumerate(names)}


def _of_rank(dump: Dump, lanes: Mapping[str, int]) -> Iterator[Slice]:
    yield _named("process_name", dump.rank, 0, f"rank {dump.rank} ({dump.host})")
    yield {"ph": "M", "name": "process_sort_index", "pid": dump.rank, "tid": 0, "args": {"sort_index": dump.rank}}
    yield _named("thread_name", dump.rank, STEPS, "steps")
    yield _named("thread_name", dump.rank, BUCKETS, "buckets")
    for group in dump.groups:
        if group.name in lanes:
            yield _named("thread_name", dump.rank, lanes[group.name], f"group {group.name}")
    waiters = {event.thread for event in dump.events if event.kind == "waited"}
    for thread in sorted(waiters):
        name = "main thread" if thread == dump.pid else f"thread {thread}"
        yield _named("thread_name", dump.rank, THREADS + thread, name)
    begun: dict[Any, Any] = {}
    for event in dump.events:
        yield from _of_event(dump.rank, event, begun)


# event that ends a slice -> (event that began it, name, lane)
_SLICES = {
    "backward": ("forward", "forward", STEPS),
    "computed": ("backward", "backward", STEPS),
    "stepped": ("computed", "exposed communication", STEPS),
}


def _of_event(rank: int, event: Event, begun: dict[Any, Any]) -> Iterator[Slice]:
    if event.kind == "waited":
        yield _slice("waits", rank, THREADS + event.thread, event.time - event.ns, event.time, {})
    if event.kind == "regrouped":
        title = f"world {event.seq}: {counted(event.peer, 'rank')}"
        yield _slice(title, rank, STEPS, event.time - event.ns, event.time, {"step": event.bytes})
    if event.kind in _SLICES:
        began, name, lane = _SLICES[event.kind]
        first = begun.pop(began, None)
        if first is not None and first.seq == event.seq:
            yield _slice(name, rank, lane, first.time, event.time, {"step": event.seq})
    if event.kind in ("forward", "backward", "computed"):
        begun[event.kind] = event
    if event.kind in ("ready", "launched", "done"):
        yield from _of_bucket(rank, event, begun)


def _of_bucket(rank: int, event: Event, begun: dict[Any, Any]) -> Iterator[Slice]:
    if event.kind == "ready":
        args = {"bytes": event.bytes, "step": event.seq}
        yield {**_point("i", f"bucket {event.peer} ready", rank, BUCKETS, event.time), "s": "t", "args": args}
        return
    # Buckets travel side by side, and each model numbers its steps from 1: the first that was launched is done first.
    launches = begun.setdefault((event.seq, event.peer), deque())
    if event.kind == "launched":
        launches.append(event.time)
    elif not launches:
        return  # its beginning was overwritten
    phase, launched = ("b", launches[-1]) if event.kind == "launched" else ("e", launches.popleft())
    yield {
        **_point(phase, f"bucket {event.peer}", rank, BUCKETS, event.time),
        "cat": "bucket",
        "id": f"{rank}/{event.seq}/{event.peer}/{launched}",
        "args": {"bytes": event.bytes},
    }


def _of_collective(row: Collective, lane: int, clock: Mapping[int, Offset]) -> Iterator[Slice]:
    args = {"number": row.seq, "bytes": row.bytes, "dtype": row.dtype, "op": row.op, "plan": row.algorithm}
    for rank, side in row.sides.items():
        title = f"{row.name} #{row.seq}"
        ends = side.ended or max(side.enqueued, side.started, side.arrived)
        if side.enqueued and side.started:
            yield _slice(f"{title} queued", rank, lane, side.enqueued, side.started, args)
        if side.started:
            yield _slice(f"{title} waits for ranks", rank, lane, side.started, side.arrived or ends, args)
        if side.arrived and side.ended:
            yield _slice(title + (" failed" if side.failed else ""), rank, lane, side.arrived, side.ended, args)
            if side.arrived > side.started:  # otherwise its bytes may have come beside the one before
                yield from _bandwidth(row, rank, side.arrived, side.ended)
    yield from _arrows(row, lane, clock)


def _bandwidth(row: Collective, rank: int, begin: int, end: int) -> Iterator[Slice]:
    """Bytes of the tensor by the time from when all were there to the end, as a counter."""
    if end <= begin or row.bytes == 0:
        return
    name = f"GB/s of group {row.group}"
    yield {**_point("C", name, rank, 0, begin), "args": {"GB/s": row.bytes / (end - begin)}}
    yield {**_point("C", name, rank, 0, end), "args": {"GB/s": 0}}


def _arrows(row: Collective, lane: int, clock: Mapping[int, Offset]) -> Iterator[Slice]:
    entered = {rank: side.started + clock[rank].ns for rank, side in row.sides.items() if side.started}
    if len(entered) < 2:
        return
    last = max(entered, key=lambda rank: entered[rank])
    for rank, side in row.sides.items():
        if rank == last or not side.arrived:
            continue
        id_ = f"{row.group}/{row.generation}/{row.seq}/{last}-{rank}"
        both = {"cat": "collective", "id": id_}
        yield {**_point("s", row.name, last, lane, row.sides[last].started), **both}
        yield {**_point("f", row.name, rank, lane, side.arrived), **both, "bp": "e"}


def _named(what: str, rank: int, lane: int, name: str) -> Slice:
    return {"ph": "M", "name": what, "pid": rank, "tid": lane, "args": {"name": name}}


def _point(phase: str, name: str, rank: int, lane: int, time: int) -> Slice:
    return {"ph": phase, "name": name, "pid": rank, "tid": lane, "ts": time}


def _slice(name: str, rank: int, lane: int, begin: int, end: int, args: Mapping[str, object]) -> Slice:
    return {**_point("X", name, rank, lane, begin), "dur": max(0, end - begin), "args": dict(args)}
