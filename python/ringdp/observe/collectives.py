"""Collectives as all ranks saw them: one row per (group, number), put together from the ranks' events."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from ringdp.observe.dump import Dump, Event


@dataclass
class Seen:
    """One rank's side of a collective, in nanoseconds of its own clock; 0: not among its events."""

    enqueued: int = 0
    started: int = 0
    arrived: int = 0  # everybody had entered it
    ended: int = 0
    failed: bool = False
    backlogs: dict[int, tuple[int, int]] = field(default_factory=dict)  # peer (rank in the job) -> bytes, ns

    @property
    def wait(self) -> int:
        """How long it waited for the last rank."""
        return self.arrived - self.started

    @property
    def transfer(self) -> int:
        """From when all were there to the end."""
        return self.ended - self.arrived

    @property
    def whole(self) -> bool:
        """Whether all of it is known."""
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
