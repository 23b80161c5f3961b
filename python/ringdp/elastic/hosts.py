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
_BUSY_S = 30.0  # after which a host is lost while its programs start or end
_SAY_AFTER_S = 5.0
_STOPPED_S = 5.0  # for which the host with the store waits for others when its user stops it
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
    """All hosts, as the supervisor of this one sees them. One thread, but for the watchdog.

    number: of this host. told: what all hosts must be told alike; ValueError where the one that serves the store was
    told otherwise. timeout_s: a host that has not counted for so long is lost; longer before and after the training,
    while programs start and end, as nobody waits for a step then. end: what the watchdog does to this host's ranks.
    """

    def __init__(
        self,
        store: dist.Store,
        *,
        serves: bool,
        ranks: int,
        timeout_s: float,
        number: int | None = None,
        told: str = "",
    ) -> None:
        self._store = dist.PrefixStore(PREFIX, store)
        self.serves, self._wanted_s = serves, timeout_s
        self.period_s = min(_MOST_PERIOD_S, timeout_s / _BEATS)  # in which this host counts once
        self.timeout_s = max(timeout_s, _BUSY_S)
        self.end: Callable[[], object] = lambda: None
        self._hosts: dict[int, _Host] = {}  # in the order in which they have come
        self._counted = self._looked = time.monotonic()
        self._waited_s: float | None = None if serves else 0.0  # for the store; None: does not matter
        if serves:
            self._store.set("ended", "")
            self._store.set("job", told)
        else:
            threading.Thread(target=self._watch_store, name="ringdp-store", daemon=True).start()
            if (theirs := self._store.get("job").decode()) != told:
                self.close()
                raise ValueError(f"this host was told {told}, and that with the store {theirs}: make them alike")
        self.number = self._take_number(number)
        self._store.set(f"state/{self.number}", _LIVES)
        self._store.set(f"beat/{self.number}", "0")
        self._store.append("hosts", json.dumps([self.number, socket.gethostname(), ranks]) + "\n")
        for host in self._read():
            host.is_gone = host.state != _LIVES

    def _take_number(self, wanted: int | None) -> int:
        """In the order in which hosts come, unless it was given and is free."""
        if wanted is not None and self._store.add(f"taken/{wanted}", 1) == 1:
            return wanted
        while self._store.add(f"taken/{(number := self._store.add('numbers', 1) - 1)}", 1) > 1:
            pass
        return number

    def gather(self, least: int, most: int, limit_s: float, say: Callable[[str], None]) -> dict[int, int]:
        """Waits for so many hosts; the ranks of each, of the first `most`. HostIsLost where they do not come."""
        began, said = time.monotonic(), False
        while len(there := self._living()) < least:
            so_far, passed = f"{len(there)} of {counted(least, 'host')}", time.monotonic() - began
            if passed > limit_s:
                raise HostIsLost(f"{so_far} came within {limit_s:g} s")
            if passed > _SAY_AFTER_S and not said:
                said = True
                say(f"{so_far} came so far, the others are waited for, {limit_s:g} s in all")
            self.look()
            time.sleep(_PAUSE_S)
        return {host.number: host.ranks for host in there[:most]}

    def find_room(self, most: int) -> None:
        """HostIsLost where so many have come before and live, for longer than it takes to lose one."""
        until = time.monotonic() + self._wanted_s + 2 * self.period_s
        while True:
            there = [host.number for host in self._living()]
            if self.number in there[:most]:
                return
            if time.monotonic() > until:
                raise HostIsLost(f"{counted(len(there) - 1, 'host')} there, and --nnodes allows {most}")
            self.look()
            time.sleep(_PAUSE_S)

    def training_begins(self) -> None:
        """From now on timeout_s is what was given."""
        self.timeout_s = self._wanted_s

    def training_ends(self) -> None:
        """From now on it is as long as before it."""
        self._wanted_s = self.timeout_s = max(self._wanted_s, _BUSY_S)

    def attend(self) -> None:
        """By the supervisor, again and again, whatever it waits for. HostIsLost where the job has ended."""
        if self._waited_s is not None:
            self._waited_s = 0.0
        if time.monotonic() - self._counted < self.period_s:
            return
        self._counted = time.monotonic()
        self._store.add(f"beat/{self.number}", 1)
        if ended := self._store.get("ended"):
            raise HostIsLost(ended.decode())

    def look(self) -> list[tuple[int, str]] | None:
        """Hosts that are gone since the last call, and why, or "left"; HostIsLost if this one is. Attends, too.

        None where it is not yet time for it.
        """
        self.attend()
        now = time.monotonic()
        passed = min(now - self._looked, 2 * self.period_s)  # time for which this process was stopped does not count
        if passed < self.period_s:
            return None
        self._looked = now
        found = []
        for host in self._read():
            host.silent_s = host.silent_s + passed if host.beat == host.beat_before else 0.0
            host.beat_before = host.beat
            is_other = host.number != self.number
            if is_other and not host.is_gone and (host.state != _LIVES or host.silent_s > self.timeout_s):
                host.is_gone = True
                found.append((host.number, host.state or self._give_up(host)))
        own = self._hosts[self.number].state
        if own not in (_LIVES, LEFT):
            raise HostIsLost(f"the others have gone on without this host: {own}")
        return found

    def gone(self) -> list[int]:
        """Those that are, as look() has said."""
        return [host.number for host in self._hosts.values() if host.is_gone]

    def _living(self) -> list[_Host]:
        return [host for host in self._read() if host.state == _LIVES]

    def _read(self) -> list[_Host]:
        """In the order of coming, with what the store says now."""
        for line in self._store.get("hosts").splitlines():
            number, name, ranks = json.loads(line)
            self._hosts.setdefault(number, _Host(number, name, ranks))
        hosts = list(self._hosts.values())
        values = self._store.multi_get([f"{what}/{host.number}" for host in hosts for what in ("state", "beat")])
        for host, state, beat in zip(hosts, values[::2], values[1::2], strict=True):
            host.state, host.beat = state.decode(), beat
        return hosts

    def _give_up(self, host: _Host) -> str:
        why = f"nothing was heard of {host} for {self.timeout_s:g} s"
        return self._store.compare_set(f"state/{host.number}", _LIVES, why).decode()

    def end_job(self, why: str) -> None:
        """On all hosts."""
        self._store.set("ended", f"host {self.number} ({socket.gethostname()}): {why}")

    def leave(self, is_stopped: Callable[[], bool] = lambda: False) -> list[tuple[int, str]]:
        """This host has ended by itself. The one that serves the store waits for the others, a while if it is stopped.

        What has failed meanwhile: hosts that were lost, and why; or (this one, why) where the job has ended.
        """
        self._store.compare_set(f"state/{self.number}", _LIVES, LEFT)
        self.training_begins()
        failed: dict[int, str] = {}
        until = float("inf")
        while self.serves and time.monotonic() < until and any(h.number != self.number for h in self._living()):
            if is_stopped():
                until = min(until, time.monotonic() + _STOPPED_S)
            try:
                failed |= {number: why for number, why in self.look() or () if why != LEFT}
            except HostIsLost as lost:
                failed[self.number] = str(lost)
            time.sleep(_PAUSE_S)
        if self.serves and (ended := self._store.get("ended")):
            failed[self.number] = ended.decode()
        return list(failed.items())

    def close(self) -> None:
        """Ends the watchdog."""
        self._waited_s = None

    def _watch_store(self) -> None:
        """The watchdog: ends this host when the store does not answer, which would block the supervisor for ever."""
        while self._waited_s is not None and self._waited_s <= self.timeout_s:
            time.sleep(self.period_s)
            if self._waited_s is not None:
                self._waited_s += self.period_s
        if self._waited_s is None:
            return
        try:
            self.end()
            print(
                f"ringdp run: the store has not answered for {self.timeout_s:g} s, so this host is cut off from the "
                "others, or the one that serves it is lost: this host ends, and hosts that reach the store go on",
                file=sys.stderr,
                flush=True,
            )
        finally:
            os._exit(1)
