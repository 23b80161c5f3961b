"""A man in the middle: TCP connections of ranks go through him, and he changes one thing in what they carry.

Ranks are led to him by a store that gives his port in place of the listener's. What is changed is drawn from a seed
and can be printed: which pair, connection and direction, after how many bytes, and how.
"""

from __future__ import annotations

import random
import selectors
import socket
import threading
from collections.abc import Sequence
from dataclasses import dataclass

import torch.distributed as dist
from ranks import HERE, World
from stores import Before

HELLO_BYTES = 92
_CHANNEL_AT = 12
CONTROL, BULK, MESSAGES = 1, 2, 3
CHANNELS = {CONTROL: 1, BULK: 6, MESSAGES: 2}  # how often each is drawn
KINDS = ("bit", "byte", "noise", "huge", "drop", "insert", "repeat", "cut")


# (rank that listens, the other one, channel, whether it is what the first one sends): bytes behind the hello in a life.
Traffic = dict[tuple[int, int, int, bool], int]


@dataclass(frozen=True)
class Change:
    """One change: after `offset` bytes behind the hello, on this connection of these ranks."""

    kind: str
    low: int  # the rank that listens
    high: int
    channel: int
    upwards: bool  # what `low` sends
    offset: int
    seed: int

    @classmethod
    def drawn(
        cls, seed: int, traffic: Traffic, kinds: Sequence[str] = KINDS, channels: dict[int, int] = CHANNELS
    ) -> Change:
        """Somewhere in what is carried."""
        draw = random.Random(seed)
        channel = draw.choices(list(channels), list(channels.values()))[0]
        used = sorted(key for key, count in traffic.items() if key[2] == channel and count)
        low, high, _, upwards = draw.choice(used)
        offset = draw.randrange(traffic[low, high, channel, upwards])
        return cls(draw.choice(kinds), low, high, channel, upwards, offset, seed)

    def applied(self, chunk: bytes, at: int) -> bytes | None:
        """`chunk` with the change at byte `at` of it; None: the connection is cut there."""
        draw = random.Random(self.seed)
        head, tail = chunk[:at], bytearray(chunk[at:])
        size = min(len(tail), 32)
        if self.kind == "bit":
            tail[0] ^= 1 << draw.randrange(8)
        elif self.kind == "byte":
            tail[0] ^= draw.randrange(1, 256)
        elif self.kind == "noise":
            tail[:size] = bytes(b ^ draw.randrange(1, 256) for b in tail[:size])
        elif self.kind == "huge":
            tail[: min(size, 8)] = b"\xff" * min(size, 8)
        elif self.kind == "drop":
            del tail[:size]
        elif self.kind == "insert":
            tail[:0] = draw.randbytes(draw.choice((1, 8, 32)))
        elif self.kind == "repeat":
            tail[:0] = tail[:size]
        else:
            return None
        return head + bytes(tail)


class Tampering:
    """Carries all connections of a world until it is left; applies one change in each of its lives."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.life = 0
        self._lines: list[_Line] = []
        self.change: Change | None = None
        self.applied = False
        self._selector = selectors.DefaultSelector()
        self._listeners = {low: socket.create_server(("127.0.0.1", 0)) for low in range(world.size - 1)}
        for low, listener in self._listeners.items():
            self._selector.register(listener, selectors.EVENT_READ, ("listener", low))
        self._ends = False
        self._thread = threading.Thread(target=self._carry, daemon=True)

    def __enter__(self) -> Tampering:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends = True
        self._thread.join()
        for key in list(self._selector.get_map().values()):
            key.fileobj.close()

    def begin_life(self, change: Change | None) -> str:
        """What follows goes through him with this change; the name of the ranks' store then."""
        self.life += 1
        self.change, self.applied = change, False
        self._lines.clear()
        return self._prefix()

    def traffic(self) -> Traffic:
        """Of this life so far."""
        return {
            (line.low, line.high, line.channel, upwards): count - HELLO_BYTES
            for line in self._lines
            for upwards, count in line.carried.items()
        }

    def _prefix(self) -> str:
        return f"life {self.life}"

    @property
    def ports(self) -> dict[int, int]:
        """Where to find him in place of each rank."""
        return {low: listener.getsockname()[1] for low, listener in self._listeners.items()}

    def _carry(self) -> None:
        while not self._ends:
            for key, _ in self._selector.select(0.05):
                what, of = key.data
                if what == "listener":
                    self._accept(key.fileobj, of)
                elif not of.closed:
                    self._pump(key.fileobj, of)

    def _accept(self, listener: socket.socket, low: int) -> None:
        near, _ = listener.accept()
        host, port = self.world.store.get(f"{self._prefix()}/tampering/{low}").decode().split()
        try:
            far = socket.create_connection((host, int(port)))
        except OSError:  # that rank has given up meanwhile
            near.close()
            return
        line = _Line(low, near, far)
        self._lines.append(line)
        for end in (near, far):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._selector.register(end, selectors.EVENT_READ, ("line", line))

    def _pump(self, end: socket.socket, line: _Line) -> None:
        try:
            chunk = end.recv(65536)
            upwards = end is line.far
            chunk = self._changed(chunk, line, upwards) if chunk else b""
            if chunk:
                (line.near if upwards else line.far).sendall(chunk)
                return
        except OSError:
            pass
        line.closed = True
        for side in (line.near, line.far):
            self._selector.unregister(side)
            side.close()

    def _changed(self, chunk: bytes, line: _Line, upwards: bool) -> bytes:
        before = line.carried[upwards]
        line.carried[upwards] += len(chunk)
        if before == 0 and not upwards:
            line.read_hello(chunk)
        change = self.change
        if change is None or self.applied:
            return chunk
        if (line.low, line.high, line.channel) != (change.low, change.high, change.channel):
            return chunk
        at = HELLO_BYTES + change.offset - before
        if upwards != change.upwards or not 0 <= at < len(chunk):
            return chunk
        self.applied = True
        return change.applied(chunk, at) or b""


class _Line:
    """One connection of rank `high` (near) to rank `low` (far)."""

    def __init__(self, low: int, near: socket.socket, far: socket.socket) -> None:
        self.low, self.near, self.far = low, near, far
        self.high = self.channel = -1
        self.closed = False
        self.carried = {True: 0, False: 0}

    def read_hello(self, chunk: bytes) -> None:
        """The first bytes come in one piece: a hello is one small write."""
        self.channel = int.from_bytes(chunk[_CHANNEL_AT : _CHANNEL_AT + 4], "little")
        self.high = int.from_bytes(chunk[36:40], "little")


class LedAstray(Before):
    """The job's store, but the addresses of lower ranks are those of the man in the middle."""

    def __init__(self, store: dist.Store, ports: dict[int, int]) -> None:
        super().__init__(store)
        self.ports = ports

    def get(self, key: str) -> bytes:
        value = super().get(key)
        low = int(key.rsplit("/", 1)[1]) if "/address/" in key else HERE.rank
        if low >= HERE.rank:
            return value
        host, port, streams = value.decode().split()
        self.set(f"tampering/{low}", f"{host} {port}")
        return f"127.0.0.1 {self.ports[low]} {streams}".encode()
