"""Which processes train at the moment: the world, in a store that outlives all of them.

A process of an elastic job is a member and has a number of its own, which is never used again. A world is a list of
members in the order of their ranks; worlds are numbered by epochs. There is one at a time, in one key of the store,
replaced by compare-and-set, so that there is no doubt about it whoever writes: the supervisor, which knows by waitpid
who has died (supervisor.py); a member after a false alarm; and a member that closes the world when the training is
over, after which there is no other.

    world                    JSON: its epoch, whether it is closed, its members
    terms                    JSON: what holds for the whole job
    coming                   how many processes may still join
    training                 it has begun
    patience                 seconds for which a rank that is stopped is waited for
    here/<epoch>/<member>    it is about to make the process group of this epoch
    requests                 lines of JSON: what members ask of the supervisor
    epoch/<epoch>/...        the rendezvous of the process groups of this epoch
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any

import torch.distributed as dist

PREFIX = "ringdp/elastic"
_PAUSE_S = 0.003  # between two looks at the store


class WorldIsOver(RuntimeError):
    """A newer world has ended what was under way."""


@dataclass(frozen=True)
class World:
    """members: by rank. is_closed: they have trained to the end."""

    epoch: int
    members: tuple[int, ...]
    is_closed: bool = False

    def text(self) -> str:
        """As it is in the store."""
        return json.dumps([self.epoch, self.is_closed, *self.members])

    @classmethod
    def of(cls, text: str | bytes) -> World:
        """The inverse of text()."""
        epoch, is_closed, *members = json.loads(text)
        return cls(epoch, tuple(members), is_closed)


@dataclass(frozen=True)
class Request:
    """A member's request to the supervisor. what: "join" or "leave", for itself; "replace", another one, and why."""

    what: str
    member: int
    why: str = ""


class Worlds:
    """The worlds of one job. Not thread-safe; errors are the store's."""

    def __init__(self, store: dist.Store) -> None:
        self._whole = store
        self._store = dist.PrefixStore(PREFIX, store)

    def begin(self, members: Sequence[int], min_ranks: int) -> World:
        """The first one, of epoch 0; by the supervisor, before there are members."""
        world = World(0, tuple(members))
        self._store.set("terms", json.dumps({"ranks": len(world.members), "min_ranks": min_ranks}))
        self._store.set("requests", "")
        self.expect(0)
        self._store.set("world", world.text())
        return world

    def terms(self) -> dict[str, int]:
        """ranks: how many there are at most; min_ranks: how many members a world needs to train."""
        return json.loads(self._store.get("terms"))

    def current(self) -> World:
        """The newest one."""
        return World.of(self._store.get("world"))

    def replace(self, old: World, members: Sequence[int], *, closed: bool = False) -> World:
        """The newest world after an attempt to let one of these members follow `old`: that one, or who was first."""
        new = World(old.epoch + 1, tuple(members), closed)
        return World.of(self._store.compare_set("world", old.text(), new.text()))

    def publish(self, members: Sequence[int]) -> World:
        """Makes these the newest world, unless that is closed; keys of worlds long over go."""
        while not (old := self.current()).is_closed:
            if (now := self.replace(old, members)) == World(old.epoch + 1, tuple(members)):
                self._sweep(now.epoch - 1)
                return now
        return old

    def expect(self, coming: int) -> None:
        """By the supervisor: how many processes may still join."""
        self._store.set("coming", str(coming))

    def coming(self) -> int:
        """How many processes may still join."""
        return int(self._store.get("coming"))

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

    def ask(self, request: Request) -> None:
        """Of the supervisor."""
        self._store.append("requests", json.dumps(asdict(request)) + "\n")

    def requests(self) -> list[Request]:
        """All that were asked so far."""
        return [Request(**json.loads(line)) for line in self._store.get("requests").splitlines()]

    def gather(self, world: World, member: int, limit_s: float, on_late: Callable[[list[int]], None]) -> None:
        """Waits until all members of this world are here; WorldIsOver where a newer one has come.

        on_late is called once, with the members that are not here after limit_s.
        """
        keys = {other: f"here/{world.epoch}/{other}" for other in world.members}
        self._store.set(keys[member], "")
        late_at = time.monotonic() + limit_s
        while not self._store.check(list(keys.values())):
            self.check(world)
            if time.monotonic() > late_at:
                on_late([other for other, key in keys.items() if not self._store.check([key])])
                late_at = float("inf")
            time.sleep(_PAUSE_S)

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
            if found and len(parts) > 2 and parts[0] in ("here", "epoch") and int(parts[1]) < before:
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
