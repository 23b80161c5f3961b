"""The limits of a collective: what its bytes cost when they are moved perfectly and nothing else is done.

On one host every rank does this between two barriers, over float32 whatever the dtype (the bytes are the same):
sweep    all_reduce: x *= a over its own S bytes. reduce_scatter, reduce: reads S, writes S/N. all_gather, broadcast
         (all but the root): copies S out of shared memory. all_to_all: copies S. The data of an all_reduce stay in the
         rank's own cache, which no collective can achieve.
shuffle  all_reduce only: rank r does x *= a over part r of each of N shared buffers of S bytes: the same footprint and
         the same traffic between cores as a sum in one pass, without the sum.
barrier  nothing: the cost of a barrier.

Across hosts:
probe    what two plain sockets per host carry, one in each direction, both at once. The first rank of every host sends
         to the next host and receives from the previous one the bytes that must enter and leave a host whatever the
         algorithm: 2(h-1)/h of the tensor in an all_reduce over h hosts, half of that in a reduce_scatter or an
         all_gather.
"""

from __future__ import annotations

import select
import socket

from runner.cell import Cell
from runner.native import Mapping
from runner.worker import Buffers, Candidate, Worker

LIMITS = ("sweep", "shuffle", "barrier")
FACTOR = -1.0  # keeps values what they are, whatever the number of sweeps


def sweep_bytes(cell: Cell, rank: int, root: int) -> tuple[int, int]:
    """(read, written) by `rank` in the sweep."""
    size = cell.nbytes
    if cell.op in ("reduce_scatter", "reduce"):
        return size, size // cell.ranks
    return (0, 0) if cell.op == "broadcast" and rank == root else (size, size)


def shared_bytes(cells: list[Cell]) -> int:
    """Shared memory that the limits of these cells need."""
    return max((cell.nbytes * (cell.ranks if cell.op == "all_reduce" else 1) for cell in cells), default=0)


class Limit:
    """One of LIMITS as a candidate. `memory` gives the sweep what ordinary tensors of a collective would lie in."""

    checked = False

    def __init__(self, name: str, worker: Worker, shared: Mapping, memory: Candidate) -> None:
        self.name, self._worker, self._shared, self._memory = name, worker, shared, memory

    def open(self, cell: Cell) -> Buffers:
        """Memory that the rank has filled itself before it starts, as before a collective."""
        if self.name == "sweep":
            return self._memory.open(cell)
        return Buffers(self._shared.address + self._worker.rank * cell.nbytes if self.name == "shuffle" else 0, 0)

    def call(self, cell: Cell, buffers: Buffers, root: int) -> None:
        """Barrier, the movement, barrier."""
        self._worker.barrier()
        if self.name == "sweep":
            self._sweep(cell, buffers, root)
        elif self.name == "shuffle":
            self._shuffle(cell)
        self._worker.barrier()

    def _sweep(self, cell: Cell, buffers: Buffers, root: int) -> None:
        native, floats = self._worker.native, cell.nbytes // 4
        if cell.op == "all_reduce":
            native.runner_scale(buffers.input, floats, FACTOR)
        elif cell.op in ("reduce_scatter", "reduce"):
            target = buffers.output or buffers.input
            native.runner_fold(target, buffers.input, floats // cell.ranks, cell.ranks)
        elif cell.op == "all_to_all":
            native.runner_copy(buffers.output, buffers.input, cell.nbytes)
        elif cell.op == "all_gather" or self._worker.rank != root:
            native.runner_copy(buffers.output or buffers.input, self._shared.address, cell.nbytes)

    def _shuffle(self, cell: Cell) -> None:
        part = cell.nbytes // 4 // cell.ranks
        for buffer in range(cell.ranks):
            start = self._shared.address + buffer * cell.nbytes + self._worker.rank * part * 4
            self._worker.native.runner_scale(start, part, FACTOR)


PORT = 29600
CHUNK = 1 << 18
PATIENCE_MS = 60_000
PROBE_OPS = ("all_reduce", "reduce_scatter", "all_gather")


def probe_bytes(cell: Cell, hosts: int) -> int:
    """Bytes that leave every host, and enter it."""
    half = (hosts - 1) * cell.nbytes // hosts
    return 2 * half if cell.op == "all_reduce" else half


class Probe:
    """A candidate that moves those bytes and nothing else."""

    name, checked = "probe", False

    def __init__(self, worker: Worker) -> None:
        addresses: list[str] = worker.job["hosts"]
        self._hosts = len(addresses)
        per_host = worker.ranks // self._hosts
        self._active = worker.rank % per_host == 0
        host = worker.rank // per_host
        server = socket.create_server((addresses[host], PORT)) if self._active else None
        worker.barrier()
        if server:
            self._out = socket.create_connection((addresses[(host + 1) % self._hosts], PORT), timeout=30)
            self._in, _ = server.accept()
            server.close()
            for end in (self._out, self._in):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                end.setblocking(False)
            self._source, self._sink = memoryview(bytearray(CHUNK)), memoryview(bytearray(CHUNK))
        worker.barrier()

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
