"""What a process listens on and holds open, strangers that connect there, and a man in the middle.

TCP connections of ranks go through the man in the middle, which changes one thing in what they carry. Ranks are led to
it by a store that gives its port instead of the listener's. The change is drawn from a seed and can be printed: which
pair, connection and direction, after how many bytes, and how.
"""

from __future__ import annotations

import os
import random
import selectors
import socket
import struct
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch.distributed as dist
from calls import Before
from ranks import HERE, World

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


def knock(address: tuple[str, int]) -> socket.socket:
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
                with knock(address) as stranger:
                    stranger.sendall(frame)
                self.knocks += 1
            except OSError:
                continue  # refused, reset or gone: as it should be

    def _hold_open(self, address: tuple[str, int]) -> None:
        while len(self._held) > 2 * HALF_OPEN:  # their meetings are over; an ordinary user has 1024 descriptors
            self._held.pop(0).close()
        for _ in range(HALF_OPEN):
            try:
                self._held.append(knock(address))
            except OSError:
                return


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
        """What this life has carried so far."""
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

    def is_at_work(self) -> bool:
        """Whether what the ranks send is still carried."""
        return self._thread.is_alive()

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
        key = f"{self._prefix()}/tampering/{low}"
        if not self.world.store.check([key]):  # of an earlier life: ranks say where to find `low` before they connect
            near.close()
            return
        host, port = self.world.store.get(key).decode().split()
        try:
            far = socket.create_connection((host, int(port)), timeout=1)
            far.settimeout(None)
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


class FlipIn(Tampering):
    """A bit flips in the first byte of a text that is known beforehand."""

    wanted, upwards = b"", False

    def begin_life_with(self, wanted: bytes, *, upwards: bool) -> str:
        """As begin_life(); the text is looked for in what lower ranks send to higher ones (`upwards`), or these."""
        self.wanted, self.upwards = wanted, upwards
        return self.begin_life(None)

    def _changed(self, chunk: bytes, line: _Line, upwards: bool) -> bytes:
        chunk = super()._changed(chunk, line, upwards)
        at = chunk.find(self.wanted)
        if self.applied or not self.wanted or upwards != self.upwards or at < 0:
            return chunk
        self.applied = True
        return chunk[:at] + bytes([chunk[at] ^ 0x80]) + chunk[at + 1 :]


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
        host, port, rest = value.decode().split(maxsplit=2)
        self.set(f"tampering/{low}", f"{host} {port}")
        return f"127.0.0.1 {self.ports[low]} {rest}".encode()
