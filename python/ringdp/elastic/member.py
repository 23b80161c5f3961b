"""This process as a member of an elastic job: in which world it is, and the default process group of that world."""

from __future__ import annotations

import functools
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from ringdp import _native
from ringdp.backend import Options
from ringdp.ddp.modes import ring_options
from ringdp.elastic.arrivals import Arrivals
from ringdp.elastic.worlds import Request, VoidableStore, World, WorldIsOver, Worlds
from ringdp.text.units import counted

_C = _native.load()
# Set by the supervisor: "<member>@<host>:<port>", its number and the store of the job.
VARIABLE = "RINGDP_MEMBER"
FALSE_ALARM_S = 1.0  # without a new world by then, nobody has died: members propose the old one again
_PAUSE_S = 0.003
_LOOK_S = 0.05  # between two looks for a world without some of this one's members
_STORE_TIMEOUT = timedelta(seconds=60)


class Closed(Exception):
    """The training is over for all members."""


@functools.cache
def this_member() -> Member | None:
    """None where no supervisor has started this process. ValueError: not what a supervisor writes."""
    text = os.environ.pop(VARIABLE, None)  # not for processes that this one starts
    if text is None:
        return None
    number, at, place = text.partition("@")
    host, colon, port = place.rpartition(":")
    if not (at and colon and number.isdigit() and port.isdigit()):
        raise ValueError(
            f"invalid value '{text}' for {VARIABLE} (expected <member>@<host>:<port>, as `ringdp run` sets it)"
        )
    return Member(int(number), (host, int(port)))


class Member:
    """In the worlds of its job. Its default process group has been made, as that of the first world or of one rank.

    place: of the store of the job. world: the one whose group it is in, or was in; None before the first. is_newcomer:
    until it is in one. trains: whether a training has begun here. terms: of the job, see Worlds.
    """

    def __init__(self, number: int, place: tuple[str, int]) -> None:
        self._number, self._place = number, place
        self._worlds = worlds = self._connect()
        self._host = int(os.environ.get("GROUP_RANK", "0"))  # as the supervisor has set it
        self._options = ring_options(dist.group.WORLD, torch.device("cpu"))
        self._backend = dist.get_backend()
        self._left = threading.Event()  # the world
        self._lock = threading.Lock()
        self.trains = False
        self.terms = worlds.terms()
        self.world: World | None = None
        first = worlds.current()
        self.is_newcomer = number not in first.members
        if not self.is_newcomer and first.epoch == 0:
            self.world = first  # its group is the one that the program has made
        _C.name_members(number, [number] if self.is_newcomer else first.members, "")

    def _connect(self) -> Worlds:
        host, port = self._place
        return Worlds(dist.TCPStore(host, port, is_master=False, timeout=_STORE_TIMEOUT))

    def members(self) -> tuple[int, ...]:
        """Of its world."""
        return self.world.members if self.world is not None else ()

    def is_over(self) -> bool:
        """Whether there is a newer world than its own."""
        return self._worlds.current() != self.world

    @property
    def host(self) -> int:
        """Its number in the job."""
        return self._host

    @property
    def timeout_s(self) -> float:
        """Of its groups: for which a collective waits for a rank that computes."""
        return self._options._timeout.total_seconds()

    def memory(self) -> str:
        """The path of memory that outlives the processes of this host."""
        return self._worlds.memory(self._host)

    def coming_hosts(self) -> set[int]:
        """Hosts whose processes may still join."""
        return self._worlds.coming_hosts()

    def left(self) -> set[int]:
        """Members of its world that are in the newest one no more, or wait in it for the others."""
        return self._worlds.left(self.world)

    def arrivals(self) -> Arrivals:
        """Of its world; all members make one, and then no other one before the next world."""
        return Arrivals(self._worlds.store_of(self.world), self._number, self.world.members)

    def begin_training(self, patience_s: float) -> None:
        """From here on deaths are survived, and a rank that is stopped is waited for so long."""
        self.trains = True
        self._worlds.begin_training(patience_s)

    def enter(self, min_ranks: int) -> tuple[float, float]:
        """Makes the group of the newest world that is large enough; seconds until all were here, and for the group.

        Closed: the training is over. WorldIsOver, DistError: that world has ended meanwhile; leave() follows.
        """
        if self.world is not None and dist.is_initialized():
            self._end_with_its_hosts(self.world)
            return 0.0, 0.0  # that of the program's beginning
        begin = time.monotonic()
        if self.is_newcomer:
            self._ask(Request("join", self._number))
        world = self._gather(min_ranks)
        here = time.monotonic()
        self._destroy()  # that of one rank in which a newcomer begins
        self.is_newcomer, self.world = False, world
        self._make_group(world)
        self._end_with_its_hosts(world)
        return here - begin, time.monotonic() - here

    def leave(self, *, is_fault: bool) -> None:
        """Ends its world's groups. After a fault, waits for the next world, or proposes the same members again."""
        self._set_left()
        self._destroy()
        if not is_fault or self.world is None:
            return
        until = time.monotonic() + FALSE_ALARM_S
        while time.monotonic() < until:
            if self.is_over():
                return
            time.sleep(_PAUSE_S)
        self._worlds.follow(self.world)

    def give_up(self) -> None:
        """The training has failed here; the others go on at once, whatever this process does next."""
        with suppress(dist.DistError):
            self._ask(Request("leave", self._number))
        self._set_left()
        self._destroy()

    def close(self) -> bool:
        """All have trained to the end. Whether that is the end: not if a newer world was there first."""
        is_closed = self._worlds.follow(self.world, closed=True).is_closed
        if is_closed:
            self._set_left()
        return is_closed

    def replace(self, others: Sequence[int], why: str) -> None:
        """Asks for others in the place of these members."""
        now = self._worlds.current()
        host_of = dict(zip(now.members, now.hosts, strict=False))
        for other in others:
            self._worlds.ask(Request("replace", other, why), host_of.get(other, self._host))

    def _set_left(self) -> None:
        with self._lock:
            self._left.set()

    def _ask(self, request: Request) -> None:
        self._worlds.ask(request, self._host)

    def _end_with_its_hosts(self, world: World) -> None:
        """Ends the groups of this world when another follows without some of its members: links may not tell.

        Of a host that has vanished nothing arrives, and its supervisor's silence is noticed sooner than that.
        """
        if not world.hosts:
            return
        worlds, self._left = self._connect(), threading.Event()

        def look(left: threading.Event) -> None:
            with suppress(dist.DistError):  # the store is gone
                while threading.main_thread().is_alive() and not left.wait(_LOOK_S):
                    if set(world.members) - set(worlds.current().members):
                        with self._lock:  # not the groups of the next world
                            if not left.is_set():
                                _abort_groups()
                        return

        threading.Thread(target=look, args=(self._left,), name="ringdp-world").start()

    def _gather(self, min_ranks: int) -> World:
        limit_s = self.timeout_s
        blame = functools.partial(self.replace, why=f"has not come to the next world for {limit_s:g} s")
        while True:
            world = self._wait_for_own_world(min_ranks)
            try:
                self._worlds.gather(world, self._number, limit_s, blame)
                return world
            except WorldIsOver:
                continue

    def _wait_for_own_world(self, min_ranks: int) -> World:
        """The newest one, once this member and enough others are in it. RuntimeError where it never will be."""
        while True:
            world = self._worlds.current()
            if world.is_closed:
                raise Closed
            if self._number in world.members:
                if len(world.members) >= min_ranks:
                    return world
                if self._worlds.coming() == 0 and self._worlds.current() == world:
                    raise RuntimeError(
                        f"ringdp.elastic: {counted(len(world.members), 'rank')} left, and none to come, with "
                        f"min_ranks={min_ranks}: restart from a checkpoint"
                    )
            elif not self.is_newcomer:
                raise RuntimeError(
                    f"ringdp.elastic: this process (member {self._number}) has been replaced: world {world.epoch} goes "
                    "on without it"
                )
            time.sleep(_PAUSE_S)

    def _make_group(self, world: World) -> None:
        store = self._worlds.store_of(world)
        _prepare_torch()
        rank, size = world.members.index(self._number), len(world.members)
        _C.name_members(self._number, world.members, f" of world {world.epoch}")
        host, port = self._place  # programs read these, and the first one says which interface leads to the others
        os.environ |= {"MASTER_ADDR": host, "MASTER_PORT": str(port), "RANK": str(rank), "WORLD_SIZE": str(size)}
        dist.init_process_group(
            self._backend,
            store=VoidableStore(store, lambda: self._worlds.check(world)),
            rank=rank,
            world_size=size,
            timeout=self._options._timeout,
            pg_options=Options(**self._options.fields()),
        )
        # From here on its ranks know each other's processes; and programs expect a store with all methods.
        known = distributed_c10d._world.pg_map
        known[dist.group.WORLD] = (known[dist.group.WORLD][0], dist.PrefixStore("groups", store))

    @staticmethod
    def _destroy() -> None:
        if dist.is_initialized():
            dist.destroy_process_group()


def _abort_groups() -> None:
    """All that this process has, of backend ringdp. Any thread."""
    for group in list(distributed_c10d._world.pg_map):
        with suppress(RuntimeError):  # of another kind, or gone meanwhile
            group._get_backend(torch.device("cpu")).abort()


def _prepare_torch() -> None:
    """Undoes what a group that is no more, or that was not completed, has left in torch."""
    distributed_c10d._world.group_count = 0  # names groups, alike on all ranks
    while (inner := _inner_hook(sys.excepthook)) is not None:  # each group adds "[rank0]: " to tracebacks
        sys.excepthook = inner


def _inner_hook(hook: Callable[..., object]) -> Callable[..., object] | None:
    """The hook that torch's has replaced; None where it is not torch's."""
    if getattr(hook, "__name__", "") != "_distributed_excepthook" or hook.__closure__ is None:
        return None
    named = dict(zip(hook.__code__.co_freevars, (cell.cell_contents for cell in hook.__closure__), strict=True))
    return named.get("old_hook")
