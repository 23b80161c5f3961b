"""Interfaces of this host, the way to another one, and a listener that tells the time. Every wait has a deadline."""

from __future__ import annotations

import errno
import os
import socket
import struct
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from ipaddress import ip_address
from typing import Any

import ringdp

CONNECT_S = 3.0  # no answer for so long, with three repetitions of the kernel's, is a packet that was dropped
_TRIES = 2
_PINGS = 8


class HostError(Exception):
    """Why this host cannot take part: one sentence, with what to do."""


@dataclass(frozen=True)
class Interface:
    """An address of this host. megabits: as the driver reports it, 0 when it does not."""

    name: str
    address: str
    megabits: int = 0


def interfaces() -> list[Interface]:
    """All addresses of interfaces that are up, without link-local ones of IPv6, in the kernel's order."""
    return [Interface(**found) for found in ringdp._C.interfaces()]


def addresses_of(host: str) -> set[str]:
    """The addresses of a name. HostError when it has none."""
    try:
        return {str(found[4][0]) for found in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)}
    except OSError as error:
        raise HostError(f"the host name '{host}' is not known here ({error.strerror}): use an address") from None


def chosen(found: list[Interface], master: str, named: str) -> tuple[Interface, str]:
    """The interface that ringdp binds to between hosts, and why.

    `named`: the setting socket_ifname. ValueError names the interfaces where there is none.
    """
    route = "" if named else ringdp._C.route_to(master)
    name, address = ringdp._C.choose_interface(named, route)
    interface = next(one for one in found if (one.name, one.address) == (name, address))
    if named:
        return interface, "RINGDP_SOCKET_IFNAME"
    if not route:
        return interface, f"the first one: there is no route to {master}"
    if address == route and not ip_address(route).is_loopback:
        return interface, f"it routes to {master}"
    return interface, f"the first one: {master} resolves to this host's loopback"


def outcome_of(error: OSError) -> str:
    """What became of a connection, in the words of the report."""
    if isinstance(error, ConnectionRefusedError):
        return "refused"
    if isinstance(error, TimeoutError):
        return "no answer"
    if error.errno in (errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EINVAL, errno.EACCES, errno.EPERM):
        return "no route"
    return error.strerror or str(error)


def join_store(address: str, port: int, serves: bool, timeout_s: float) -> Any:
    """The store of all ranks; `serves`: on this host. HostError says why it cannot be had, within seconds."""
    from torch.distributed import DistError, TCPStore

    if not serves:
        _wait_for_listener(address, port, timeout_s)
    try:
        return TCPStore(
            address, port, is_master=serves, wait_for_workers=False, timeout=timedelta(seconds=max(1.0, timeout_s))
        )
    except (DistError, RuntimeError) as error:
        reason = str(error).splitlines()[0]
        verb = "served" if serves else "reached"
        raise HostError(f"the store at {address}:{port} cannot be {verb} from this host: {reason}") from None


_UNREACHED = {
    "refused": "nothing listens there: start the same command on that host, too; a firewall may also answer so",
    "no answer": "packets are dropped: a firewall between the hosts, or not that host's address",
    "no route": "there is no route: the address, the network or a firewall's rule is wrong",
}


def _wait_for_listener(address: str, port: int, timeout_s: float) -> None:
    """Until a process listens; a port that does not answer at all is given up before one that refuses."""
    addresses_of(address)
    end, unanswered = time.monotonic() + timeout_s, 0
    while True:
        try:
            socket.create_connection((address, port), CONNECT_S).close()
            return
        except OSError as error:
            outcome = outcome_of(error)
        unanswered += outcome != "refused"
        if unanswered >= _TRIES or time.monotonic() > end:
            why = _UNREACHED.get(outcome, "see the error")
            host = socket.gethostname()
            raise HostError(f"port {port} of {address} cannot be reached from {host} ({outcome}): {why}")
        time.sleep(0.1)


class Listener:
    """A port on one address that answers each byte with the time, until close()."""

    def __init__(self, address: str) -> None:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self._socket = socket.create_server((address, 0), family=family, backlog=128)
        self.port = self._socket.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):  # closed
            while True:
                connection, _ = self._socket.accept()
                threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    @staticmethod
    def _answer(connection: socket.socket) -> None:
        with connection, suppress(OSError):
            connection.settimeout(CONNECT_S)
            while connection.recv(1):
                connection.sendall(struct.pack("!q", time.time_ns()))

    def close(self) -> None:
        """No further connection is accepted."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


def reach(address: str, port: int) -> dict[str, Any]:
    """Connects to a Listener. outcome: "open", or why not; clock_s: how far its clock is ahead, within error_s."""
    try:
        with socket.create_connection((address, port), CONNECT_S) as connection:
            connection.settimeout(CONNECT_S)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            samples = [_ask_time(connection) for _ in range(_PINGS)]
    except OSError as error:
        return {"outcome": outcome_of(error)}
    trip, ahead = min(samples)
    return {"outcome": "open", "clock_s": ahead, "error_s": trip / 2}


def _ask_time(connection: socket.socket) -> tuple[float, float]:
    """(round trip, how far the other clock is ahead), seconds."""
    begin = time.time_ns()
    connection.sendall(b"?")
    answer = b""
    while len(answer) < 8:
        part = connection.recv(8 - len(answer))
        if not part:
            raise ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET))
        answer += part
    end = time.time_ns()
    return (end - begin) / 1e9, (struct.unpack("!q", answer)[0] - (begin + end) / 2) / 1e9
