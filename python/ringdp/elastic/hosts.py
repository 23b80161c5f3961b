"""The hosts of an elastic job: each has a supervisor, and all of them one store, which the one at the endpoint serves.

Who has lost whom is not voted on: each supervisor counts in the store, and whoever sees that another one has stopped
counting takes its members out of the world, by compare-and-set. A host that is cut off from the store cannot write
there; it ends by itself. So the side that reaches the store goes on, and never two.

    job          JSON: what all hosts must have been told alike
    hosts        lines of JSON: number, name and ranks of each that has come
    beat/<n>     a number that grows while the host lives
    state/<n>    '' while it lives; "left" once it has ended by itself; otherwise why the others go on without it
    ended        why the job has ended; '' as long as it has not
"""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta

import torch.distributed as dist

from ringdp.elastic.worlds import PREFIX
from ringdp.text.units import counted

_LIVES, LEFT = "", "left"
_BEATS = 5  # in the time after which a host is lost
_MOST_PERIOD_S = 1.0  # between two
_STARTING_S = 30.0
_SAY_AFTER_S = 5.0
_PAUSE_S = 0.05
_STORE_TIMEOUT = timedelta(seconds=60)


@dataclass
class _Host:
    """What the store says of a host. silent_s: for which it has not counted. is_gone: which look() has said."""

    number: int
    name: str
    ranks: int
    state: str = ""
    beat: bytes = b""
    beat_before: bytes = b""
    silent_s: float = 0.0
    is_gone: bool = False

    def __str__(self) -> str:
        return f"host {self.number} ({self.name})"


class HostIsLost(RuntimeError):
    """The others go on without this host, or the job has ended."""


@dataclass(frozen=True)
class Endpoint:
    """Where the store of a job is: on one of its hosts."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"

    def is_here(self) -> bool:
        """Whether the address is one of this host's. ValueError where the name has no address."""
        try:
            found = socket.getaddrinfo(self.host, None, type=socket.SOCK_STREAM)
        except OSError as error:
            raise ValueError(f"--rdzv-endpoint {self}: {self.host!r} has no address here: {error}") from None
        for family, kind, _, _, address in found:
            with suppress(OSError), socket.socket(family, kind) as probe:
                probe.bind((address[0], 0, *address[2:]))
                return True
        return False

    def store(self, limit_s: float) -> tuple[dist.TCPStore, bool]:
        """The store, and whether this process serves it. Waits so long for the host that does."""
        if self.is_here():
            with suppress(dist.DistError):  # another supervisor of this host serves it
                return self._connect(is_master=True, limit_s=limit_s), True
        return self._connect(is_master=False, limit_s=limit_s), False

    def _connect(self, *, is_master: bool, limit_s: float) -> dist.TCPStore:
        limit = timedelta(seconds=limit_s)
        store = dist.TCPStore(self.host, self.port, is_master=is_master, wait_for_workers=False, timeout=limit)
        store.set_timeout(_STORE_TIMEOUT)
        return store


class Hosts:
    """All hosts, as the supervisor of this one sees them. One thread.

    number: of this host. timeout_s: a host that has not counted for so long is lost; longer before the training, while
    programs start.
    """

    def __init__(self, store: dist.Store, *, serves: bool, ranks: int, timeout_s: float, number: int | None) -> None:
        self._store = dist.PrefixStore(PREFIX, store)
        self._serves, self._wanted_s = serves, timeout_s
        self.period_s = min(_MOST_PERIOD_S, timeout_s / _BEATS)  # in which this host counts once
        self.timeout_s = max(timeout_s, _STARTING_S)
        self._hosts: dict[int, _Host] = {}
        self._looked = time.monotonic()
        if serves:
            self._store.set("ended", "")
        self.number = self._take_number(number)
        self._store.set(f"state/{self.number}", _LIVES)
        self.beat()
        self._store.append("hosts", json.dumps([self.number, socket.gethostname(), ranks]) + "\n")

    def agree(self, told: str) -> None:
        """ValueError where the host that serves the store was told otherwise."""
        if self._serves:
            self._store.set("job", told)
        elif (theirs := self._store.get("job").decode()) != told:
            raise ValueError(f"this host was told {told}, and the one that serves the store {theirs}: make them alike")

    def _take_number(self, wanted: int | None) -> int:
        """In the order in which hosts come, unless it was given and is free."""
        if wanted is not None and self._store.add(f"taken/{wanted}", 1) == 1:
            return wanted
        while self._store.add(f"taken/{(number := self._store.add('numbers', 1) - 1)}", 1) > 1:
            pass
        return number

    def gather(self, least: int, limit_s: float, say: Callable[[str], None]) -> dict[int, int]:
        """Waits for so many hosts; the ranks of each. HostIsLost where they do not come."""
        began, said = time.monotonic(), False
        while len(ranks := {host.number: host.ranks for host in self._read()}) < least:
            there, passed = f"{len(ranks)} of {counted(least, 'host')}", time.monotonic() - began
            if passed > limit_s:
                raise HostIsLost(f"{there} came within {limit_s:g} s")
            if passed > _SAY_AFTER_S and not said:
                said = True
                say(f"{there} came so far, the others are waited for, {limit_s:g} s in all")
            self.beat()
            time.sleep(_PAUSE_S)
        return ranks

    def training_begins(self) -> None:
        """From now on timeout_s is what was given."""
        self.timeout_s = self._wanted_s

    def living(self) -> list[int]:
        """Those that have come and live."""
        return [host.number for host in self._read() if host.state == _LIVES]

    def look(self) -> list[tuple[int, str]] | None:
        """Counts, and returns hosts that are gone since the last call, and why, or "left"; HostIsLost if this one is.

        None, and does nothing, where it is not yet time.
        """
        now = time.monotonic()
        passed = now - self._looked
        if passed < self.period_s:
            return None
        self._looked = now
        found = []
        for host in self._read():
            host.silent_s = host.silent_s + min(passed, 2 * self.period_s) if host.beat == host.beat_before else 0.0
            host.beat_before = host.beat  # time for which this process was stopped does not count
            if host.number == self.number:
                if host.state not in (_LIVES, LEFT):
                    raise HostIsLost(f"the others have gone on without this host: {host.state}")
            elif not host.is_gone and (host.state != _LIVES or host.silent_s > self.timeout_s):
                host.is_gone = True
                found.append((host.number, host.state or self._give_up(host)))
        self.beat()
        return found

    def _read(self) -> list[_Host]:
        """By number, with what the store says now."""
        for line in self._store.get("hosts").splitlines():
            number, name, ranks = json.loads(line)
            self._hosts.setdefault(number, _Host(number, name, ranks))
        hosts = [self._hosts[number] for number in sorted(self._hosts)]
        values = self._store.multi_get([f"{what}/{host.number}" for host in hosts for what in ("state", "beat")])
        for host, state, beat in zip(hosts, values[::2], values[1::2], strict=True):
            host.state, host.beat = state.decode(), beat
        return hosts

    def _give_up(self, host: _Host) -> str:
        why = f"nothing was heard of {host} for {self.timeout_s:g} s"
        return self._store.compare_set(f"state/{host.number}", _LIVES, why).decode()

    def beat(self) -> None:
        """Counts. HostIsLost where the job has ended."""
        self._store.add(f"beat/{self.number}", 1)
        if ended := self._store.get("ended"):
            raise HostIsLost(ended.decode())

    def give_up(self, why: str) -> None:
        """This host cannot take part; without the one that serves the store none can."""
        if self._serves:
            self.end_job(why)
        self.leave()

    def end_job(self, why: str) -> None:
        """On all hosts."""
        self._store.set("ended", f"host {self.number} ({socket.gethostname()}): {why}")

    def leave(self) -> None:
        """This host has ended by itself. The one that serves the store waits for the others."""
        self._store.compare_set(f"state/{self.number}", _LIVES, LEFT)
        self.training_begins()
        while self._serves and set(self.living()) - {self.number}:
            time.sleep(_PAUSE_S)
            with suppress(HostIsLost):
                self.look()  # whoever does not leave is lost


class Watchdog(threading.Thread):
    """Ends this host when its supervisor has waited too long for the store, which would block it for ever."""

    def __init__(self, hosts: Hosts, end: Callable[[], None], place: Endpoint) -> None:
        super().__init__(daemon=True)
        self._hosts, self._end, self._place = hosts, end, place
        self._waited_s = 0.0

    def alive(self) -> None:
        """By the supervisor, again and again."""
        self._waited_s = 0.0

    def run(self) -> None:
        """See the class."""
        while self._waited_s <= self._hosts.timeout_s:
            time.sleep(self._hosts.period_s)
            self._waited_s += self._hosts.period_s  # time for which this process was stopped does not count
        print(
            f"ringdp run: the store at {self._place} has not answered for {self._hosts.timeout_s:g} s, so this host is "
            "cut off from the others or the one that serves it is lost: this host ends, and hosts that reach the store "
            "go on",
            file=sys.stderr,
            flush=True,
        )
        self._end()
        os._exit(1)
