"""The limit of an all-reduce across hosts: what two plain sockets per host carry, one each way, both at once.

The first rank of every host sends to the next host and receives from the previous one the bytes that must enter and
leave a host however clever the algorithm: 2(h-1)/h of the tensor in an all_reduce over h hosts, half of that in a
reduce_scatter or an all_gather.
"""

from __future__ import annotations

import select
import socket

from race.cell import Cell
from race.seat import Buffers, Seat

PORT = 29600
CHUNK = 1 << 18
PATIENCE_MS = 60_000
OPS = ("all_reduce", "reduce_scatter", "all_gather")


def probe_bytes(cell: Cell, hosts: int) -> int:
    """Bytes that leave every host, and enter it."""
    half = (hosts - 1) * cell.nbytes // hosts
    return 2 * half if cell.op == "all_reduce" else half


class Probe:
    """A candidate that moves those bytes and nothing else."""

    name, checked = "probe", False

    def __init__(self, seat: Seat) -> None:
        addresses: list[str] = seat.job["hosts"]
        self._hosts = len(addresses)
        per_host = seat.ranks // self._hosts
        self._active = seat.rank % per_host == 0
        host = seat.rank // per_host
        server = socket.create_server((addresses[host], PORT)) if self._active else None
        seat.barrier()
        if server:
            self._out = socket.create_connection((addresses[(host + 1) % self._hosts], PORT), timeout=30)
            self._in, _ = server.accept()
            server.close()
            for end in (self._out, self._in):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                end.setblocking(False)
            self._source, self._sink = memoryview(bytearray(CHUNK)), memoryview(bytearray(CHUNK))
        seat.barrier()

    def open(self, cell: Cell) -> Buffers:
        """Nothing of its own."""
        return Buffers(0, 0)

    def call(self, cell: Cell, buffers: Buffers, root: int) -> None:
        """Both directions to their end."""
        if self._active:
            self._exchange(probe_bytes(cell, self._hosts))

    def _exchange(self, nbytes: int) -> None:
        unsent = unread = nbytes
        poll = select.poll()
        poll.register(self._out, select.POLLOUT)
        poll.register(self._in, select.POLLIN)
        while unsent or unread:
            ready = poll.poll(PATIENCE_MS)
            if not ready:
                raise TimeoutError(f"probe: nothing moved for {PATIENCE_MS // 1000} s")
            for descriptor, _ in ready:
                if descriptor == self._out.fileno():
                    unsent -= self._out.send(self._source[:unsent])
                    if not unsent:
                        poll.unregister(self._out)
                else:
                    got = self._in.recv_into(self._sink[: min(unread, CHUNK)])
                    if not got:
                        raise ConnectionError("probe: the previous host has closed its connection")
                    unread -= got
                    if not unread:
                        poll.unregister(self._in)
