"""The files that ranks write with RINGDP_TRACE=folder: rank_0, rank_1, ... (csrc/trace/flight.h says what is there)."""

from __future__ import annotations

import io
import pickle
import re
from collections.abc import Sequence
from dataclasses import dataclass
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
    """A folder or file that holds no trace; the text names it, and what to do."""


class Event(NamedTuple):
    """One event (csrc/trace/event.h). Times are the rank's own steady clock, in nanoseconds."""

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
        if own["format"] != FORMAT:
            raise TraceError(f"{file} has trace format {own['format']}, this ringdp reads {FORMAT}: use its own ringdp")
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
    except Exception as error:  # whatever a damaged pickle makes of itself
        raise TraceError(f"{file} is no trace of ringdp ({type(error).__name__}: {error})") from None


def _check(dump: Dump) -> None:
    """What the readers rely on. ValueError says what is wrong."""
    own = (dump.rank, dump.pid, dump.host, dump.boot, dump.wall, dump.steady, dump.lost)
    if tuple(map(type, own)) != (int, int, str, str, int, int, int):
        raise ValueError("its head has values of other types")
    for group in dump.groups:
        if type(group.name) is not str or group.members[group.rank] != dump.rank:
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
