"""Which transports can work on this machine, and why."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable


def probe_shm() -> tuple[bool, str]:
    """Whether memory can be shared between processes: an anonymous, sealable memory file that can be sized."""
    try:
        fd = os.memfd_create("ringdp-probe", os.MFD_ALLOW_SEALING | os.MFD_CLOEXEC)
    except (AttributeError, OSError) as error:
        return False, f"memfd_create does not work here: {error}"
    try:
        os.ftruncate(fd, 1 << 16)
        os.posix_fallocate(fd, 0, 1 << 16)
    except OSError as error:
        return False, f"shared memory cannot be sized: {error}"
    finally:
        os.close(fd)
    return True, "memfd works; used between ranks of one host that can map each other's memory"


def probe_tcp() -> tuple[bool, str]:
    """Whether there is an interface to bind to."""
    try:
        names = [name for _, name in socket.if_nameindex()]
    except OSError as error:
        return False, f"interfaces cannot be listed: {error}"
    if not names:
        return False, "this machine has no network interface"
    return True, f"interfaces {', '.join(names)}; used between hosts"


_PROBES: dict[str, Callable[[], tuple[bool, str]]] = {"shm": probe_shm, "tcp": probe_tcp}


def transports(choice: str) -> list[dict[str, object]]:
    """One row (name, available, why) per transport; `choice` is the setting `transport` in force."""
    rows: list[dict[str, object]] = []
    for name, probe in _PROBES.items():
        available, why = probe()
        if choice not in ("auto", name):
            available, why = False, f"off: transport={choice} is forced"
        rows.append({"name": name, "available": available, "why": why})
    return rows
