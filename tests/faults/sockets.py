"""What a process listens on and holds open, read from /proc; and the strangers who knock there."""

from __future__ import annotations

import os
import random
import socket
import struct
import threading
import time
from collections.abc import Iterable
from pathlib import Path

_LISTEN = "0A"
_UNIX_LISTENS = 0x10000
HALF_OPEN = 200


def _socket_inodes(pid: int) -> set[str]:
    inodes = set()
    for fd in os.listdir(f"/proc/{pid}/fd"):
        try:
            target = os.readlink(f"/proc/{pid}/fd/{fd}")
        except FileNotFoundError:
            continue  # closed meanwhile
        if target.startswith("socket:["):
            inodes.add(target[8:-1])
    return inodes


def _tcp_sockets(pid: int) -> Iterable[tuple[str, str, int]]:
    """State, local address and local port of this process' IPv4 sockets."""
    inodes = _socket_inodes(pid)
    for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[9] in inodes:
            address, port = fields[1].split(":")
            yield fields[3], socket.inet_ntoa(struct.pack("<I", int(address, 16))), int(port, 16)


def tcp_listeners(pid: int) -> list[tuple[str, int]]:
    """IPv4 addresses on which this process listens."""
    return [(address, port) for state, address, port in _tcp_sockets(pid) if state == _LISTEN]


def tcp_ports(pid: int) -> set[int]:
    """Local ports of this process' IPv4 sockets, connected ones included."""
    return {port for _, _, port in _tcp_sockets(pid)}


def other_listeners(pid: int) -> list[str]:
    """IPv6 and unix sockets on which this process listens."""
    inodes, found = _socket_inodes(pid), []
    for line in Path(f"/proc/{pid}/net/tcp6").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[3] == _LISTEN and fields[9] in inodes:
            found.append(fields[1])
    for line in Path(f"/proc/{pid}/net/unix").read_text().splitlines()[1:]:
        fields = line.split()
        if int(fields[3], 16) & _UNIX_LISTENS and fields[6] in inodes:
            found.append(fields[7] if len(fields) > 7 else "unnamed")
    return found


def open_files(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def threads(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/task"))


def resident_kib(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmRSS")).split()[1])


def call(address: tuple[str, int]) -> socket.socket:
    """A stranger's connection; raises OSError. From another address than the listener's: TCP may choose the very port
    that is called as the caller's own, and a socket that calls itself is answered.
    """
    return socket.create_connection(address, timeout=1, source_address=("127.0.0.2", 0))


def frames() -> Iterable[bytes]:
    """Greetings of strangers: noise, other protocols, cut frames, lengths near the integers' ends."""
    source = random.Random(7)
    yield b""
    yield b"\x00"
    yield b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
    for length in (3, 64, 128, 4096):
        yield source.randbytes(length)
    for giant in (2**31 - 1, 2**32 - 1, 2**63 - 1, 2**64 - 1):
        yield struct.pack("<Q", giant) + source.randbytes(120)
        yield b"ringdp\x00\x00" + struct.pack("<IIQQ", 1, 0, giant, giant) + source.randbytes(96)


class Strangers:
    """Threads that find what the processes listen on and pester it until stopped; counts what they did."""

    def __init__(self, pids: list[int]) -> None:
        self.pids = pids
        self.knocks = 0
        self.seen: set[tuple[str, int]] = set()
        self._held: list[socket.socket] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._pester)

    def __enter__(self) -> Strangers:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        for held in self._held:
            held.close()

    def _pester(self) -> None:
        while not self._stop.is_set():
            listeners = {address for pid in self.pids for address in tcp_listeners(pid)}
            for address in listeners:
                self._greet(address)
                if address not in self.seen:
                    self._hold_open(address)
            self.seen |= listeners
            time.sleep(0.01)

    def _greet(self, address: tuple[str, int]) -> None:
        for frame in frames():
            try:
                with call(address) as stranger:
                    stranger.sendall(frame)
                self.knocks += 1
            except OSError:
                continue  # refused, reset or gone: as it should be

    def _hold_open(self, address: tuple[str, int]) -> None:
        while len(self._held) > 2 * HALF_OPEN:  # of meetings that are over; an ordinary user has 1024 descriptors
            self._held.pop(0).close()
        for _ in range(HALF_OPEN):
            try:
                self._held.append(call(address))
            except OSError:
                return
