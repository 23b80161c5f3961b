"""Which processes train at the moment: the world, in a store that outlives all of them.

A process of an elastic job is a member and has a number of its own, which is never used again. A world is a list of
members in the order of their ranks; worlds are numbered by epochs. There is one at a time, in one key of the store,
replaced by compare-and-set, so that there is no doubt about it whoever writes: a supervisor, which knows by waitpid
who has died (supervisor.py), and with several hosts which of them is not heard of (hosts.py); a member after a false
alarm; and a member that closes the world when the training is over, after which there is no other.

    world                    JSON: epoch, whether it is closed, members, and the host of each if there are several
    terms                    JSON: what holds for the whole job
    members                  how many numbers of members are taken
    coming                   JSON: how many processes of each host may still join
    memory/<host>            the path of memory that outlives the processes of the host (host_memory.py)
    training                 it has begun
    patience                 seconds for which a rank that is stopped is waited for
    here/<member>            JSON: of which epoch it was last about to make the process group, and whether it was in any
    requests/<host>          lines of JSON: what members ask of its supervisor, which removes what it has read
    epoch/<epoch>/...        the rendezvous of the process groups of this epoch
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from typing import Any, NamedTuple

import torch.distributed as dist

PREFIX = "ringdp/elastic"
_ABSENT = "absent"
_PAUSE_S = 0.003  # between two looks at the store
_LOOK_S = 0.05  # for the first world


class WorldIsOver(RuntimeError):
    """A newer world has ended what was under way."""


@dataclass(frozen=True)
class World:
    """members: by rank. is_closed: they have trained to the end. hosts: of the members; () where all are on host 0."""

    epoch: int
    members: tuple[int, ...]
    is_closed: bool = False
    hosts: tuple[int, ...] = ()

    def text(self) -> str:
        """As it is in the store."""
        return json.dumps([self.epoch, self.is_closed, self.members, self.hosts])

    @classmethod
    def of(cls, text: str | bytes) -> World:
        """The inverse of text()."""
        epoch, is_closed, members, hosts = json.loads(text)
        return cls(epoch, tuple(members), is_closed, tuple(hosts))

    def on_host(self, host: int) -> list[int]:
        """Its members there."""
        hosts = self.hosts or (0,) * len(self.members)
        return [member for member, its in zip(self.members, hosts, strict=True) if its == host]

    def with_host(self, host: int, members: Sequence[int]) -> World:
        """The next one, in which the members of this host are these. Ranks go host by host."""
        there = {other: self.on_host(other) for other in self.hosts or (0,)} | {host: sorted(members)}
        of_each = [(member, other) for other in sorted(there) for member in there[other]]
        hosts = tuple(other for _, other in of_each)
        return World(self.epoch + 1, tuple(member for member, _ in of_each), hosts=hosts if any(hosts) else ())

    def host_of(self, rank: int) -> int:
        """Where a rank is."""
        return self.hosts[rank] if self.hosts else 0

    def away(self, rank: int) -> int | None:
        """The next rank that is on another host."""
        size = len(self.members)
        others = ((rank + by) % size for by in range(1, size))
        return next((other for other in others if self.host_of(other) != self.host_of(rank)), None)

    def shift(self) -> int:
        """By how many ranks a rank is away from the one whose shard it keeps: on another host if possible.

        The least with the fewest pairs on one host.
        """
        size, hosts = len(self.members), self.hosts
        pairs = {by: sum(hosts[r] == hosts[(r + by) % size] for r in range(size)) for by in range(1, size) if hosts}
        return min(pairs, key=lambda by: (pairs[by], by), default=1)


@dataclass(frozen=True)
class Request:
    """A member's request to a supervisor. what: "join" or "leave", for itself; "replace", another one, and why."""

    what: str
    member: int
    why: str = ""


class Place(NamedTuple):
    """Of a member. epoch: the newest one to which it has come by gather(), or -1. is_old: it has been in a world."""

    epoch: int = -1
    is_old: bool = False


class Worlds:
    """The worlds of one job. Not thread-safe; errors are the store's."""

    def __init__(self, store: dist.Store) -> None:
        self._whole = store
        self._store = dist.PrefixStore(PREFIX, store)

    def begin(self, members: Sequence[int], min_ranks: int, hosts: Sequence[int] = ()) -> World:
        """The first one, of epoch 0; by one supervisor, before there are members. hosts: of the members."""
        world = World(0, tuple(members), hosts=tuple(hosts))
        self._store.set("terms", json.dumps({"ranks": len(world.members), "min_ranks": min_ranks}))
        self._store.add("members", len(world.members))
        for member in world.members:
            self._set_place(member, Place(is_old=True))  # programs make its group by themselves
        self._store.set("coming", "{}")
        self._store.set("world", world.text())
        return world

    def new_member(self) -> int:
        """A number that nobody has had."""
        return self._store.add("members", 1) - 1

    def wait_for_first(self, on_look: Callable[[], object], limit_s: float) -> None:
        """Until another supervisor has begun. TimeoutError."""
        until = time.monotonic() + limit_s
        while not self._store.check(["world"]):
            on_look()
            if time.monotonic() > until:
                raise TimeoutError(f"no world has begun within {limit_s:g} s")
            time.sleep(_LOOK_S)

    def terms(self) -> dict[str, int]:
        """ranks: of the first world; min_ranks: how many members a world needs to train."""
        return json.loads(self._store.get("terms"))

    def current(self) -> World:
        """The newest one."""
        return World.of(self._store.get("world"))

    def follow(self, old: World, *, closed: bool = False) -> World:
        """The newest world after an attempt to let the same members follow `old`: that one, or who was first."""
        return self._replace(old, replace(old, epoch=old.epoch + 1, is_closed=closed))

    def _replace(self, old: World, new: World) -> World:
        return World.of(self._store.compare_set("world", old.text(), new.text()))

    def publish(self, members: Sequence[int], host: int = 0) -> World:
        """Makes these the members of a host in the newest world, unless that is closed.

        Keys go of members that are in it no more, and of worlds in which no member is.
        """
        while not (old := self.current()).is_closed:
            new = old.with_host(host, members)
            if self._replace(old, new) == new:
                for gone in {*old.members} - {*new.members}:
                    self._store.delete_key(f"here/{gone}")
                places = self._places(new.members).values()
                self._sweep(min((place.epoch for place in places if place != Place()), default=new.epoch))
                return new
        return old

    def expect(self, coming: int, host: int = 0) -> None:
        """By a supervisor: how many processes of a host may still join."""
        while True:
            old = self._store.get("coming").decode()
            new = json.dumps({key: n for key, n in (json.loads(old) | {str(host): coming}).items() if n})
            if new == old or self._store.compare_set("coming", old, new).decode() == new:
                return

    def coming(self) -> int:
        """How many processes may still join."""
        return sum(self._coming().values())

    def coming_hosts(self) -> set[int]:
        """Those whose processes may still join."""
        return {int(host) for host in self._coming()}

    def _coming(self) -> dict[str, int]:
        return json.loads(self._store.get("coming"))

    def lend_memory(self, path: str, host: int = 0) -> None:
        """By a supervisor, before it starts processes."""
        self._store.set(f"memory/{host}", path)

    def memory(self, host: int = 0) -> str:
        """Where the memory is that the supervisor of a host lends."""
        return self._store.get(f"memory/{host}").decode()

    def begin_training(self, patience_s: float) -> None:
        """By a member: from here on deaths are survived, and a rank that is stopped is waited for so long."""
        self._store.set("patience", repr(patience_s))
        self._store.set("training", "")

    def is_training(self) -> bool:
        """Whether deaths are survived."""
        return self._store.check(["training"])

    def patience(self) -> float:
        """Seconds, once the training has begun."""
        return float(self._store.get("patience"))

    def ask(self, request: Request, host: int = 0) -> None:
        """Of the supervisor of this host."""
        self._store.append(f"requests/{host}", json.dumps(asdict(request)) + "\n")

    def requests(self, host: int = 0) -> list[Request]:
        """What was asked since the last call; by the supervisor of this host."""
        key = f"requests/{host}"
        if not self._store.check([key]):
            return []
        text = self._store.get(key).decode()
        while text and (now := self._store.compare_set(key, text, "").decode()):
            text = now  # another one has come meanwhile
        return [Request(**json.loads(line)) for line in text.splitlines()]

    def gather(self, world: World, member: int, limit_s: float, on_late: Callable[[list[int]], None]) -> None:
        """Waits until all members of this world are here; WorldIsOver where a newer one has come.

        on_late is called once, with the members that are not here after limit_s. Members of the world before may make
        many steps before they see this one: a newcomer's limit_s begins when the first of them is here.
        """
        is_old, is_said = self._place(member).is_old, False
        self._set_place(member, Place(world.epoch, is_old))
        late_at = time.monotonic() + limit_s
        while True:
            places = self._places(world.members)
            absent = [other for other, place in places.items() if place.epoch < world.epoch]
            if not absent:
                break
            self.check(world)
            old = {other for other, place in places.items() if place.is_old}
            if not is_old and old and old <= {*absent}:
                late_at = time.monotonic() + limit_s
            if time.monotonic() > late_at and not is_said:
                is_said = True
                on_late(absent)
            time.sleep(_PAUSE_S)
        self._set_place(member, Place(world.epoch, is_old=True))

    def left(self, world: World) -> set[int]:
        """The members of a world that are in the newest one no more, or have come to a newer one."""
        if (now := self.current()).epoch == world.epoch:
            return set()
        places = self._places(world.members)
        return {m for m, place in places.items() if m not in now.members or place.epoch > world.epoch}

    def _set_place(self, member: int, place: Place) -> None:
        self._store.set(f"here/{member}", json.dumps(place))

    def _places(self, members: Sequence[int]) -> dict[int, Place]:
        return {member: self._place(member) for member in members}

    def _place(self, member: int) -> Place:
        """A get() would wait where the key has just gone; this one says so."""
        value = self._store.compare_set(f"here/{member}", _ABSENT, _ABSENT)
        return Place() if value == _ABSENT.encode() else Place(*json.loads(value))

    def check(self, world: World) -> None:
        """WorldIsOver unless it is the newest."""
        if (now := self.current()) != world:
            raise WorldIsOver(f"world {world.epoch} of {len(world.members)} is over: world {now.epoch} follows")

    def store_of(self, world: World) -> dist.Store:
        """For the process groups of its members."""
        return dist.PrefixStore(f"{PREFIX}/epoch/{world.epoch}", self._whole)

    def _sweep(self, before: int) -> None:
        """Removes the keys of older epochs; nothing where this torch cannot list keys."""
        try:
            keys = self._whole.list_keys()
        except (AttributeError, NotImplementedError):
            return
        for key in keys:
            _, found, rest = key.partition(f"{PREFIX}/")
            parts = rest.split("/")
            if found and len(parts) > 2 and parts[0] == "epoch" and int(parts[1]) < before:
                self._whole.delete_key(key)


class VoidableStore(dist.Store):
    """Another store, for the rendezvous of a world's first group: its waits end with WorldIsOver when the world does.

    So a rank that dies before the others have connected to it costs them no timeout: they do not know its process yet,
    and its supervisor does. Has the methods that a rendezvous uses.
    """

    def __init__(self, store: dist.Store, check: Callable[[], None]) -> None:
        super().__init__()
        self._store, self._check = store, check

    def check(self, keys: list[str]) -> bool:
        """Whether all are there."""
        if self._store.check(keys):
            return True
        self._check()
        return False

    def get(self, key: str) -> bytes:
        """Of a key that is there or comes."""
        return self.multi_get([key])[0]

    def multi_get(self, keys: list[str]) -> list[bytes]:
        """Of keys that are there or come."""
        while not self.check(keys):
            time.sleep(_PAUSE_S)
        return self._store.multi_get(keys)

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        """For keys that come; the world's end is the only limit."""
        self.multi_get(keys)

    def set(self, key: str, value: Any) -> None:
        """As the other store's."""
        self._store.set(key, value)

    def add(self, key: str, amount: int) -> int:
        """As the other store's."""
        return self._store.add(key, amount)

    def has_extended_api(self) -> bool:
        """It has multi_get()."""
        return True
