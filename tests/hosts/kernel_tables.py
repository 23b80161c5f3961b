"""This process's TCP sockets and interfaces, as the kernel lists them, and a store that looks at them in time."""

from __future__ import annotations

import os
import socket
import struct
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import torch.distributed as dist

STATES = {"listening": "0A", "connected": "01"}
FRAME_HEADERS = 14 + 20 + 32  # Ethernet, IPv4, TCP with timestamps


def own_sockets() -> set[str]:
    """Inodes of this process's sockets."""
    inodes = set()
    for fd in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):
            target = os.readlink(f"/proc/self/fd/{fd}")
            inodes.add(target.removeprefix("socket:[").removesuffix("]"))
    return inodes


def local_addresses(state: str) -> set[tuple[str, tuple[int, int]]]:
    """(local address, (local port, remote port)) of this process's TCP sockets over IPv4 in that state."""
    inodes, found = own_sockets(), set()
    for line in Path("/proc/self/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[3] == STATES[state] and fields[9] in inodes:
            (local, port), (_, remote) = fields[1].split(":"), fields[2].split(":")
            address = socket.inet_ntoa(struct.pack("=I", int(local, 16)))
            found.add((address, (int(port, 16), int(remote, 16))))
    return found


def sent_on(interface: str) -> int:
    """Bytes that an interface of this host has sent, without the headers of its packets."""
    counted = Path("/sys/class/net") / interface / "statistics"
    packets, total = (int((counted / name).read_text()) for name in ("tx_packets", "tx_bytes"))
    return total - packets * FRAME_HEADERS


class SpyingStore(dist.Store):
    """A store that notes where this process listens whenever something is published: then listeners are open."""

    def __init__(self, store: dist.Store) -> None:
        super().__init__()
        self._store = store
        self.listeners: set[tuple[str, tuple[int, int]]] = set()

    def set(self, key: str, value: str | bytes) -> None:
        """Looks, then publishes."""
        self.listeners |= local_addresses("listening")
        self._store.set(key, value)

    def get(self, key: str) -> bytes:
        """As the store behind it."""
        return self._store.get(key)

    def add(self, key: str, amount: int) -> int:
        """As the store behind it."""
        return self._store.add(key, amount)

    def check(self, keys: list[str]) -> bool:
        """As the store behind it."""
        return self._store.check(keys)

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        """As the store behind it."""
        self._store.wait(keys, *([timeout] if timeout is not None else []))
