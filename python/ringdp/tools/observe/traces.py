"""The files that ranks write with RINGDP_TRACE=folder: rank_0, rank_1, ... (csrc/trace/dump.h says what is there).

Events of all ranks are joined to collectives, one for each group and sequence number.
"""

from __future__ import annotations

import io
import pickle
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from ringdp import bounded_pickle

FORMAT = 1
# What csrc/trace/pickle.cc writes, and what Python writes of the same values without a memo.
_OPERATIONS = (
    *"PROTO STOP MARK NONE NEWTRUE NEWFALSE BININT BININT1 BININT2 LONG1 BINUNICODE".split(),
    *"EMPTY_LIST APPEND APPENDS EMPTY_DICT SETITEM SETITEMS EMPTY_TUPLE TUPLE TUPLE1 TUPLE2 TUPLE3".split(),
)
_NAME = re.compile(r"rank_(\d+)")


class TraceError(ValueError):
    """A folder or file without a trace; the message names it, and says what to do."""


class Event(NamedTuple):
    """One event (csrc/trace/events.h). Times are the rank's own steady clock, in nanoseconds."""

    kind: str
    time: int
    thread: int = 0
    group: int = -1
    seq: int = 0
    peer: int = -1
    bytes: int = 0
    ns: int = 0
    name: str = ""
    dtype: str = ""
    op: str = ""


class Group(NamedTuple):
    """A process group: its name, this process's rank in it, and of each of its ranks the rank in the job."""

    name: str
    rank: int
    members: tuple[int, ...]


@dataclass(frozen=True)
class Dump:
    """What one rank left behind, events in order of time.

    boot: of the kernel; ranks with the same one share a clock. wall, steady: the two clocks, read together.
    """

    rank: int
    pid: int
    host: str
    boot: str
    wall: int
    steady: int
    groups: tuple[Group, ...]
    events: tuple[Event, ...]
    overwritten: bool = False  # there were more events than RINGDP_TRACE_EVENTS
    lost: int = 0


_TYPES = (str, *[int] * 7, *[str] * 3)  # of an Event


class _Values(pickle.Unpickler):
    """Numbers, texts and containers only: a file can make nothing else, and calls nothing."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"names {module}.{name}")


def read(file: Path) -> Dump:
    """One rank's file. TraceError names it when it cannot be read or is none."""
    try:
        content = file.read_bytes()
        bounded_pickle.check(content, _OPERATIONS)
        own = _Values(io.BytesIO(content)).load()["ringdp"]
        if (found := own["format"]) != FORMAT:
            raise TraceError(f"{file} has trace format {found!r:.40}, this ringdp reads {FORMAT}: use its own ringdp")
        events = tuple(Event(*fields) for fields in own["events"])
        dump = Dump(
            own["rank"],
            own["pid"],
            own["host"],
            own["boot"],
            own["wall_ns"],
            own["steady_ns"],
            tuple(Group(name, rank, tuple(members)) for name, rank, members in own["groups"]),
            events,
            own["written"] - own["lost"] > len(events),
            own["lost"],
        )
        _check(dump)
        return dump
    except OSError as error:
        raise TraceError(f"{file} cannot be read: {error.strerror}") from None
    except TraceError:
        raise
    except Exception as error:  # a damaged pickle can raise anything
        what = " ".join(str(error).split())
        raise TraceError(f"{file} is not a trace of ringdp ({type(error).__name__}: {what:.200})") from None


def _check(dump: Dump) -> None:
    """Checks what the readers rely on. ValueError says what is wrong."""
    own = (dump.rank, dump.pid, dump.host, dump.boot, dump.wall, dump.steady, dump.lost)
    if tuple(map(type, own)) != (int, int, str, str, int, int, int):
        raise ValueError("its head has values of other types")
    for group in dump.groups:
        numbers = all(type(number) is int for number in (group.rank, *group.members))
        if type(group.name) is not str or not numbers or group.members[group.rank] != dump.rank:
            raise ValueError(f"rank {dump.rank} is not where group {group.name} says")
    for event in dump.events:
        if tuple(map(type, event)) != _TYPES or not all(-(1 << 63) <= number < 1 << 64 for number in event[1:8]):
            raise ValueError("an event has values of other types")
        if not -1 <= event.group < len(dump.groups):
            raise ValueError(f"an event is of group {event.group}, of {len(dump.groups)}")
        if event.kind == "blocked" and not 0 <= event.peer < len(dump.groups[event.group].members):
            raise ValueError(f"an event is of peer {event.peer}")


def read_folder(folder: Path) -> list[Dump]:
    """Every rank's file of a folder, by rank. TraceError when there is none."""
    if not folder.is_dir():
        raise TraceError(f"there is no folder {folder}: run the job with RINGDP_TRACE={folder}, or here: -- COMMAND")
    files = [file for file in folder.iterdir() if _NAME.fullmatch(file.name)]
    if not files:
        raise TraceError(f"{folder} holds no rank_* file: run the job with RINGDP_TRACE={folder} on every host")
    return sorted((read(file) for file in files), key=lambda dump: dump.rank)


def missing_ranks(dumps: Sequence[Dump]) -> list[int]:
    """Ranks that groups of these dumps name and that left no file (killed, or on a host with a folder of its own)."""
    there = {dump.rank for dump in dumps}
    return sorted({rank for dump in dumps for group in dump.groups for rank in group.members} - there)


@dataclass
class Seen:
    """One rank's side of a collective, in nanoseconds of its own clock; 0: not among its events."""

    enqueued: int = 0
    started: int = 0
    arrived: int = 0  # all ranks had entered it
    ended: int = 0
    failed: bool = False
    backlogs: dict[int, tuple[int, int]] = field(default_factory=dict)  # peer (rank in the job) -> bytes, ns

    @property
    def wait(self) -> int:
        """How long it waited for the last rank."""
        return self.arrived - self.started

    @property
    def transfer(self) -> int:
        """The time from when all ranks had arrived to the end."""
        return self.ended - self.arrived

    @property
    def whole(self) -> bool:
        """Whether all its times are known."""
        return bool(self.started and self.arrived and self.ended) and not self.failed


@dataclass
class Collective:
    """One collective. `sides` by rank in the job; `members`: the ranks of its group.

    generation: how many groups of this name came before.
    """

    group: str
    generation: int
    seq: int
    members: tuple[int, ...]
    name: str = ""
    dtype: str = ""
    op: str = ""
    algorithm: str = ""
    bytes: int = 0
    sides: dict[int, Seen] = field(default_factory=dict)

    @property
    def whole(self) -> bool:
        """Whether every rank of the group has seen all of it."""
        return len(self.sides) == len(self.members) and all(side.whole for side in self.sides.values())


def collectives(dumps: Sequence[Dump]) -> list[Collective]:
    """All that any rank knows of, group by group in the order of their numbers.

    A group made anew under the name of an earlier one is another group: it is told apart by how many of that name
    came before it in the process.
    """
    rows: dict[tuple[str, int, int], Collective] = {}
    for dump in dumps:
        keys = _keys(group.name for group in dump.groups)
        for event in dump.events:
            if event.group < 0 or event.seq == 0:
                continue
            name, generation = keys[event.group]
            members = dump.groups[event.group].members
            row = rows.setdefault((name, generation, event.seq), Collective(name, generation, event.seq, members))
            _note(row, row.sides.setdefault(dump.rank, Seen()), event)
    return [rows[key] for key in sorted(rows)]


def _keys(names: Iterable[str]) -> list[tuple[str, int]]:
    seen: dict[str, int] = {}
    keys = []
    for name in names:
        keys.append((name, seen.get(name, 0)))
        seen[name] = seen.get(name, 0) + 1
    return keys


def _note(row: Collective, side: Seen, event: Event) -> None:
    if event.kind == "enqueued":
        side.enqueued = event.time
        row.name, row.dtype, row.op, row.bytes = event.name, event.dtype, event.op, event.bytes
    elif event.kind == "started":
        side.started = event.time
    elif event.kind == "arrived":
        side.arrived = event.time
    elif event.kind == "blocked":
        side.backlogs[row.members[event.peer]] = (event.bytes, event.ns)
    elif event.kind in ("finished", "failed"):
        side.ended, side.failed = event.time, event.kind == "failed"
        row.algorithm = event.name or row.algorithm
