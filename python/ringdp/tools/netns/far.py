"""Hosts that are far apart: namespaces joined by far.c, which delays, slows down and loses what they send each other.

    with FarNetwork(2, rtt_ms=50, megabits=500) as network:
        network.hosts[0].address        # 10.78.0.1 on eth0
        network.cut(network.hosts[1], off=True)
        network.close()                 # [Traffic(sent=..., lost=..., dropped=...), ...], by host

The kernel needs neither netem nor tbf, only TUN devices.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from ringdp.tools.netns.namespaces import Host, Namespace, check_size, ip, why_impossible

SOURCE = Path(__file__).with_name("far.c")
QUEUE_MS = 50.0
_numbers = count()


def why_not_far() -> str:
    """Why this process cannot make hosts that are far apart; empty when it can."""
    if reason := why_impossible():
        return reason
    try:
        os.close(os.open("/dev/net/tun", os.O_RDWR))
    except OSError as error:
        return f"hosts that are far apart need /dev/net/tun: {error.strerror}"
    if not shutil.which(_compiler()[0]):
        return f"hosts that are far apart need a C compiler: install {_compiler()[0]}, or name another with CC="
    return ""


def _compiler() -> list[str]:
    return os.environ.get("CC", "cc").split()


def _compiled(folder: str) -> str:
    """The program, made by $CC or cc; RuntimeError with the compiler's words when it cannot be."""
    program = f"{folder}/far"
    command = [*_compiler(), "-O2", str(SOURCE), "-o", program]
    made = subprocess.run(command, capture_output=True, text=True)
    if made.returncode:
        raise RuntimeError(f"{shlex.join(command)}: {made.stderr.strip()}")
    return program


@dataclass(frozen=True)
class Traffic:
    """Packets of a host: sent, of these lost by chance, and dropped by a full queue."""

    sent: int
    lost: int
    dropped: int


class FarNetwork:
    """`size` hosts of one rate, `rtt_ms` apart. loss: a share of packets; with one seed the same ones in every run.

    The names of their namespaces carry our process id. ValueError: more than MAX_HOSTS. RuntimeError: far.c does not
    compile, or has ended; nothing stays behind.
    """

    def __init__(
        self,
        size: int,
        rtt_ms: float,
        megabits: float = 500.0,
        loss: float = 0.0,
        jitter_ms: float = 0.0,
        seed: int = 1,
    ) -> None:
        check_size(size)
        self._name = f"ringdp-{os.getpid()}-far{next(_numbers)}"
        self._size = size
        self._settings = [str(each) for each in (rtt_ms / 2, jitter_ms, megabits, QUEUE_MS, loss, seed)]
        self._stack = ExitStack()
        self._carrier: subprocess.Popen[str] | None = None
        self.hosts: list[Host] = []

    def __enter__(self) -> FarNetwork:
        with ExitStack() as undo:
            names = [undo.enter_context(Namespace(f"{self._name}-host{n}")) for n in range(self._size)]
            program = _compiled(undo.enter_context(tempfile.TemporaryDirectory(prefix="far-")))
            pipe = subprocess.PIPE
            # In a session of its own: Ctrl-C in a terminal is for the ranks, which need the network to end well.
            self._carrier = subprocess.Popen(
                [program, *self._settings, *names], stdin=pipe, stdout=pipe, text=True, start_new_session=True
            )
            undo.callback(self.close)
            assert self._carrier.stdout is not None
            if self._carrier.stdout.readline() != "ready\n":
                raise RuntimeError("far.c has ended; its own output says why")
            for number, name in enumerate(names, start=1):
                ip("-n", name, "link", "set", "lo", "up")
                ip("-n", name, "address", "add", f"10.78.0.{number}/24", "dev", "eth0")
                ip("-n", name, "link", "set", "eth0", "mtu", "1500", "txqueuelen", "10000", "up")
                self.hosts.append(Host(name, "", f"10.78.0.{number}", ""))
            self._stack = undo.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def set_rtt(self, rtt_ms: float) -> None:
        """How far apart they are from now on; packets under way arrive as before."""
        self._tell(f"delay {rtt_ms / 2}")

    def cut(self, host: Host, off: bool) -> None:
        """Packets from and to `host` vanish, or no longer do; its own device sees nothing."""
        self._tell(f"{'cut' if off else 'join'} {self.hosts.index(host) + 1}")

    def _tell(self, line: str) -> None:
        assert self._carrier is not None and self._carrier.stdin is not None
        self._carrier.stdin.write(line + "\n")
        self._carrier.stdin.flush()

    def close(self) -> list[Traffic]:
        """Nothing passes any more; what has, by host. Once."""
        if self._carrier is None:
            return []
        carrier, self._carrier = self._carrier, None
        try:
            said, _ = carrier.communicate(timeout=30)
        finally:
            carrier.kill()
            carrier.wait()
        if carrier.returncode:
            raise RuntimeError("far.c has failed; its own output says why")
        return [Traffic(*map(int, line.split())) for line in said.splitlines()]
