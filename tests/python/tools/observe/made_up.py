"""Traces of a training run that never was: every duration is given, every clock has its own zero."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ringdp.tools.observe.traces import Dump, Event, Group

MS = 1_000_000


@dataclass(frozen=True)
class Run:
    """`data(rank, step)` and `compute(rank, step)` in ms; every collective moves `size` bytes in `transfer` ms."""

    ranks: int = 3
    steps: int = 20
    data: Callable[[int, int], float] = lambda rank, step: 1.0
    compute: Callable[[int, int], float] = lambda rank, step: 10.0
    transfer: float = 1.0
    size: int = 4_000_000
    marks: bool = True  # steps of DistributedDataParallel
    full: Callable[[int, int], float] = lambda rank, peer: 0.0  # ms per step that the link was full
    boots: Sequence[str] = ("one",)
    zero: Callable[[int], int] = lambda rank: 0  # what a rank's clock shows at the beginning, in ns

    def dumps(self) -> list[Dump]:
        """One per rank."""
        events: list[list[Event]] = [[] for _ in range(self.ranks)]
        now = 0.0  # ms, on a clock that no rank has
        for step in range(1, self.steps + 1):
            now = self._step(events, step, now)
        return [self._dump(rank, events[rank]) for rank in range(self.ranks)]

    def _step(self, events: list[list[Event]], step: int, now: float) -> float:
        forward = [now + self.data(rank, step) for rank in range(self.ranks)]
        entered = [forward[rank] + self.compute(rank, step) for rank in range(self.ranks)]
        arrived = max(entered)
        ended = arrived + self.transfer
        for rank, own in enumerate(events):

            def add(kind: str, at: float, rank: int = rank, own: list[Event] = own, **fields: object) -> None:
                own.append(Event(kind, self.zero(rank) + round(at * MS), thread=100 + rank, **fields))

            call = {"group": 0, "seq": step}
            if self.marks:
                middle = (forward[rank] + entered[rank]) / 2
                add("forward", forward[rank], seq=step)
                add("backward", middle, seq=step)
                add("ready", entered[rank], seq=step, peer=0, bytes=self.size)
                add("launched", entered[rank], seq=step, peer=0, bytes=self.size)
            add("enqueued", entered[rank], bytes=self.size, name="all_reduce", dtype="float32", op="SUM", **call)
            add("started", entered[rank], **call)
            if self.marks:
                add("computed", entered[rank], seq=step)
            add("arrived", arrived, peer=entered.index(arrived), **call)
            for peer in range(self.ranks):
                if peer != rank and self.full(rank, peer):
                    add("blocked", ended, peer=peer, bytes=self.size, ns=round(self.full(rank, peer) * MS), **call)
            add("finished", ended, name="direct", **call)
            add("waited", ended, group=0, ns=round((ended - entered[rank]) * MS))
            if self.marks:
                add("done", ended, seq=step, peer=0, bytes=self.size)
                add("stepped", ended, seq=step)
        return ended

    def _dump(self, rank: int, events: list[Event]) -> Dump:
        boot = self.boots[rank % len(self.boots)]
        group = Group("0", rank, tuple(range(self.ranks)))
        ordered = tuple(sorted(events, key=lambda event: event.time))
        wall = 10**18 + 5 * MS * rank  # clocks are never set that well
        return Dump(rank, 1000 + rank, f"host-{boot}", boot, wall, self.zero(rank), (group,), ordered)


def as_file(dump: Dump, folder: Path) -> Path:
    """The dump as its rank would have written it."""
    own = {
        "format": 1,
        "rank": dump.rank,
        "pid": dump.pid,
        "host": dump.host,
        "boot": dump.boot,
        "wall_ns": dump.wall,
        "steady_ns": dump.steady,
        "written": len(dump.events),
        "lost": dump.lost,
        "groups": [(group.name, group.rank, list(group.members)) for group in dump.groups],
        "events": [tuple(event) for event in dump.events],
    }
    file = folder / f"rank_{dump.rank}"
    with file.open("wb") as stream:
        pickler = pickle.Pickler(stream, protocol=2)
        pickler.fast = True  # no memo, as csrc/trace/pickle.h
        pickler.dump({"version": "2.10", "entries": [], "ringdp": own})
    return file
