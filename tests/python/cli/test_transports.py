"""ringdp/cli/transports.py: what works here, and why not where it does not."""

import os
import socket

import pytest
from ringdp.cli import transports as module


def by_name(choice):
    return {row["name"]: row for row in module.transports(choice)}


def open_descriptors():
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize(("forced", "other"), [("shm", "tcp"), ("tcp", "shm")])
def test_a_forced_transport_switches_the_other_off(forced, other):
    free, rows = by_name("auto"), by_name(forced)
    assert rows[forced] == free[forced]
    assert not rows[other]["available"]
    assert f"transport={forced} is forced" in rows[other]["why"]


def test_shared_memory_is_really_tried(monkeypatch):
    before = open_descriptors()
    assert module.probe_shm()[0]

    def refuse(*arguments):
        raise OSError(28, "No space left")

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    available, why = module.probe_shm()
    assert not available and "No space left" in why
    monkeypatch.setattr(os, "memfd_create", refuse)
    available, why = module.probe_shm()
    assert not available and "memfd_create" in why
    assert open_descriptors() == before


def test_tcp_names_the_interfaces(monkeypatch):
    monkeypatch.setattr(socket, "if_nameindex", lambda: [(1, "lo"), (2, "eth7")])
    available, why = module.probe_tcp()
    assert available and "lo, eth7" in why
    monkeypatch.setattr(socket, "if_nameindex", list)
    assert module.probe_tcp() == (False, "this machine has no network interface")
