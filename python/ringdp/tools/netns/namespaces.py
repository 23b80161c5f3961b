"""Hosts near each other: network namespaces of this machine, joined by switches in a namespace of their own. Root.

    with Network(2) as network:
        network.hosts[0].address        # 10.77.x.1 on eth0; `second` is 10.77.y.1 on eth1
        network.hosts[0].command([...])  # the same command, run on that host

Nothing is made in the namespace of the caller, so taking the namespaces away takes everything away.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from itertools import count

MAX_HOSTS = 16
NETS = 2  # every host has eth0 and eth1, on separate switches
_numbers = count()


class Refused(subprocess.CalledProcessError):
    """Of a command, with its words in `stderr`."""

    def __str__(self) -> str:
        return f"{super().__str__()} {self.stderr.strip()}"


def ip(*arguments: str) -> str:
    """Runs ip(8)."""
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, timeout=30)
    if done.returncode != 0:
        raise Refused(done.returncode, done.args, done.stdout, done.stderr)
    return done.stdout


def why_impossible() -> str:
    """Why this process cannot make hosts; empty when it can."""
    if os.geteuid() != 0:
        return "several hosts need root, to make network namespaces"
    if not shutil.which("ip"):
        return "several hosts need ip (package iproute2)"
    probe = f"ringdp-probe-{os.getpid()}"
    try:
        with Namespace(probe):
            ip("-n", probe, "link", "add", "probe0", "type", "veth", "peer", "name", "probe1")
            ip("-n", probe, "link", "add", "probe2", "type", "bridge")
            ip("netns", "exec", probe, "true")
    except Refused as error:
        return f"this machine makes no network namespaces: {error.stderr.strip()}"
    return ""


def check_size(size: int) -> None:
    """ValueError unless there can be so many hosts."""
    if not 1 <= size <= MAX_HOSTS:
        raise ValueError(f"{size} hosts: there can be 1 to {MAX_HOSTS}")


class Namespace:
    """A network namespace that exists inside the `with` block."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __enter__(self) -> str:
        ip("netns", "add", self.name)
        return self.name

    def __exit__(self, *_: object) -> None:
        for pid in ip("netns", "pids", self.name).split():
            with suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)  # torchrun's workers outlive it when it is killed
        ip("netns", "delete", self.name)


@dataclass(frozen=True)
class Host:
    """One host. `address` is on eth0, `second` on eth1."""

    namespace: str
    port: str  # the switch's end of eth0's cable
    address: str
    second: str

    def command(self, command: list[str]) -> list[str]:
        """`command`, to be run on this host. The process id is that of the command."""
        return ["ip", "netns", "exec", self.namespace, *command]

    def throttle(self, megabits: int) -> None:
        """What this host sends through eth0 leaves at this rate."""
        bucket = ["root", "tbf", "rate", f"{megabits}mbit", "burst", "64kb", "latency", "50ms"]
        subprocess.run(self.command(["tc", "qdisc", "replace", "dev", "eth0", *bucket]), check=True, timeout=30)


class Network:
    """`size` hosts on two switches. Their names carry our process id, so that several can be side by side.

    ValueError: more than MAX_HOSTS. Refused: what the kernel or ip(8) does not do; nothing stays behind.
    """

    def __init__(self, size: int) -> None:
        check_size(size)
        self._name = f"ringdp-{os.getpid()}-{next(_numbers)}"
        self._switch = f"{self._name}-switch"
        self._stack = ExitStack()
        self._size = size
        self.hosts: list[Host] = []

    def __enter__(self) -> Network:
        with ExitStack() as undo:
            undo.enter_context(Namespace(self._switch))
            for net in range(NETS):
                ip("-n", self._switch, "link", "add", f"switch{net}", "type", "bridge")
                ip("-n", self._switch, "link", "set", f"switch{net}", "up")
            self.hosts = [self._plug_in(undo, index) for index in range(self._size)]
            self._stack = undo.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _plug_in(self, undo: ExitStack, index: int) -> Host:
        host = undo.enter_context(Namespace(f"{self._name}-host{index}"))
        ip("-n", host, "link", "set", "lo", "up")
        addresses = [f"10.77.{net}.{index + 1}" for net in range(NETS)]
        for net, address in enumerate(addresses):
            here, there = f"eth{net}", f"port{net}-{index}"
            ip("-n", host, "link", "add", here, "type", "veth", "peer", "name", there, "netns", self._switch)
            ip("-n", self._switch, "link", "set", there, "master", f"switch{net}", "up")
            ip("-n", host, "address", "add", f"{address}/24", "dev", here)
            ip("-n", host, "link", "set", here, "up")
        return Host(host, f"port0-{index}", *addresses)

    def ends(self, host: Host) -> list[tuple[str, str]]:
        """(namespace, device) of both ends of eth0's cable: what a queueing discipline is put on to shape a link."""
        return [(host.namespace, "eth0"), (self._switch, host.port)]

    def cut(self, host: Host, off: bool) -> None:
        """Frames from and to `host` vanish in the switch, or no longer do; its own end of the cable sees nothing."""
        ip("-n", self._switch, "link", "set", host.port, *(["nomaster"] if off else ["master", "switch0"]))

    def split(self, hosts: Sequence[Host], off: bool) -> None:
        """These hosts reach each other by eth0, and no other, or all do again."""
        aside = "aside"
        if off:
            ip("-n", self._switch, "link", "add", aside, "type", "bridge")
            ip("-n", self._switch, "link", "set", aside, "up")
        for host in hosts:
            ip("-n", self._switch, "link", "set", host.port, "master", aside if off else "switch0")
        if not off:
            ip("-n", self._switch, "link", "delete", aside)

    def pull_cable(self, host: Host) -> None:
        """eth0 of `host` has no carrier any more."""
        ip("-n", self._switch, "link", "set", host.port, "down")
