"""Interfaces of this host, the way to another one, and a listener that tells the time. Every wait has a deadline."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from ipaddress import IPv6Address, ip_address
from pathlib import Path
from typing import Any

CONNECT_S = 3.0  # no answer for so long, with three repetitions of the kernel's, is a packet that was dropped
_TRIES = 2
_PINGS = 8
_SIOCGIFADDR, _SIOCGIFFLAGS, _IFF_UP = 0x8915, 0x8913, 1
_LINK_SCOPE = 0x20


class CheckError(Exception):
    """Why this host cannot take part: one sentence, with what to do."""


@dataclass(frozen=True)
class Interface:
    """An address of this host. megabits: as the driver reports it, 0 when it does not."""

    name: str
    address: str
    megabits: int = 0


def interfaces() -> list[Interface]:
    """All addresses of interfaces that are up, without link-local ones of IPv6, in the kernel's order."""
    return [*_of_v4(), *_of_v6()]


def _of_v4() -> Iterator[Interface]:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode())
            with suppress(OSError):  # it has no such address
                flags = struct.unpack_from("H", fcntl.ioctl(asked, _SIOCGIFFLAGS, request), 16)[0]
                if flags & _IFF_UP:
                    address = socket.inet_ntoa(fcntl.ioctl(asked, _SIOCGIFADDR, request)[20:24])
                    yield Interface(name, address, _speed(name))


def _of_v6() -> Iterator[Interface]:
    with suppress(OSError):  # a kernel without IPv6
        for line in Path("/proc/net/if_inet6").read_text().splitlines():
            digits, _, _, scope, _, name = line.split()
            if int(scope, 16) != _LINK_SCOPE:
                yield Interface(name, str(IPv6Address(int(digits, 16))), _speed(name))


def _speed(name: str) -> int:
    with suppress(OSError, ValueError):
        return max(0, int(Path(f"/sys/class/net/{name}/speed").read_text()))
    return 0


def addresses_of(host: str) -> set[str]:
    """The addresses of a name. CheckError when it has none."""
    try:
        return {str(found[4][0]) for found in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)}
    except OSError as error:
        raise CheckError(f"the host name '{host}' is not known here ({error.strerror}): use an address") from None


def chosen(found: list[Interface], master: str, named: str) -> tuple[Interface, str]:
    """The interface that ringdp binds to between hosts, and why; csrc/transport/tcp/address.h has the rule.

    `named`: the setting socket_ifname. CheckError names the interfaces where there is none.
    """
    if named:
        for interface in found:
            if interface.name == named:
                return interface, "RINGDP_SOCKET_IFNAME"
    else:
        route = _route_to(master)
        for interface in found:
            if interface.address == route and not ip_address(route).is_loopback:
                return interface, f"it routes to {master}"
        for interface in sorted(found, key=lambda one: ip_address(one.address).is_loopback):
            return interface, f"the first one: {master} resolves to this host's loopback"
    there_are = ", ".join(f"{one.name} ({one.address})" for one in found) or "none"
    raise CheckError(f"there is no network interface '{named}' that is up and has an address; there are {there_are}")


def _route_to(host: str) -> str:
    with suppress(OSError):
        for family, kind, _, _, address in socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM):
            with socket.socket(family, kind) as asked, suppress(OSError):
                asked.connect(address)  # sends nothing
                return str(asked.getsockname()[0])
    return ""


def outcome_of(error: OSError) -> str:
    """What became of a connection, in the words of the report."""
    if isinstance(error, ConnectionRefusedError):
        return "refused"
    if isinstance(error, TimeoutError):
        return "no answer"
    if error.errno in (errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EINVAL, errno.EACCES, errno.EPERM):
        return "no route"
    return error.strerror or str(error)


def meet(address: str, port: int, serves: bool, timeout_s: float) -> Any:
    """The store at which ranks meet; `serves`: on this host. CheckError says why it cannot be had, within seconds."""
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
        raise CheckError(f"the store at {address}:{port} cannot be {verb} from this host: {reason}") from None


_UNREACHED = {
    "refused": "nothing listens there: start the same command on that host, too; a firewall may also answer so",
    "no answer": "packets are dropped: a firewall between the hosts, or not that host's address",
    "no route": "there is no route: the address, the network or a firewall's rule is wrong",
}


def _wait_for_listener(address: str, port: int, timeout_s: float) -> None:
    """Until somebody listens; a port that does not answer at all is given up before one that refuses."""
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
            raise CheckError(f"port {port} of {address} cannot be reached from {host} ({outcome}): {why}")
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
