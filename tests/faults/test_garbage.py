"""Strangers at the ranks' ports: no harm and no growth, neither while the ranks meet nor while they train."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from ranks import HERE, World
from sockets import HALF_OPEN, Strangers, call, open_files, other_listeners, resident_kib, tcp_listeners, tcp_ports
from stores import Before

STEPS = 200
GROWTH_KIB = 8192


class SlowToCall(Before):
    """A store that holds this rank back for a while once the others have said where they listen."""

    def __init__(self, store: dist.Store, seconds: float) -> None:
        super().__init__(store)
        self.seconds = seconds

    def check(self, keys: list[str]) -> bool:
        if any("/address/" in key for key in keys) and self.seconds:
            time.sleep(self.seconds)
            self.seconds = 0
        return super().check(keys)


def join_slowly(slow_rank: int, seconds: float) -> None:
    """On a rank: init_process_group, the slow rank calling late."""
    store = dist.TCPStore("127.0.0.1", HERE.port, is_master=False)
    if HERE.rank == slow_rank:
        store = SlowToCall(store, seconds)
    dist.init_process_group("ringdp", store=store, rank=HERE.rank, world_size=HERE.size, timeout=timedelta(seconds=60))


def train(steps: int) -> float:
    """On a rank: steps whose sums are known exactly."""
    total = torch.zeros(5000, dtype=torch.float64)
    for step in range(steps):
        gradient = torch.full((5000,), float(step * (HERE.rank + 1)))
        dist.all_reduce(gradient)
        total += gradient
    assert torch.equal(total, total[:1].expand(5000))
    return float(total[0])


def wanted(ranks: int, steps: int) -> float:
    return float(sum(range(steps)) * sum(range(1, ranks + 1)))


@pytest.fixture
def world_over_tcp() -> Iterator[World]:
    with World(3, transport="tcp") as world:
        world.join()
        yield world


def footprint(world: World) -> list[tuple[int, int]]:
    pids = [world.pid(rank) for rank in range(world.size)]
    return [(open_files(pid), resident_kib(pid)) for pid in pids]


def test_nobody_listens_once_the_ranks_have_met(make_world):
    world = make_world()
    world.run(train, 2)
    for rank in range(world.size):
        assert tcp_listeners(world.pid(rank)) == []
        assert other_listeners(world.pid(rank)) == []


def test_strangers_while_the_ranks_meet():
    """Three ranks listen for the fourth when garbage, giant lengths and 200 silent connections come."""
    with World(4, transport="tcp") as world:
        pids = [world.pid(rank) for rank in range(4)]
        with Strangers(pids) as strangers:
            world.begin(join_slowly, 3, 1.5)
            world.finish()
            assert world.run(train, STEPS) == [wanted(4, STEPS)] * 4
        assert len(strangers.seen) >= 3, "ranks 0, 1 and 2 listened"
        assert strangers.knocks > 10 * len(strangers.seen)
        assert all(open_files(pid) < 60 for pid in pids), "none of the strangers' connections is kept"
        for host, port in strangers.seen:
            assert host == "127.0.0.1", "nothing but the chosen interface"
            with pytest.raises(ConnectionRefusedError):
                call((host, port))


def test_strangers_at_every_meeting_leave_no_trace():
    """Ranks that meet again and again under attack keep neither memory nor descriptors."""
    with World(3, transport="tcp") as world:
        pids = [world.pid(rank) for rank in range(3)]
        with Strangers(pids) as strangers:
            for meeting in range(5):
                world.run(join_slowly, 2, 0.3)
                assert world.run(train, 10) == [wanted(3, 10)] * 3
                world.leave()
                if meeting == 1:
                    before = footprint(world)
        assert len(strangers.seen) >= 5
        check_flat(before, footprint(world))


def test_strangers_while_the_ranks_train(world_over_tcp):
    """No port of theirs takes a connection; the sums stay right."""
    world = world_over_tcp
    world.run(train, 5)
    before = footprint(world)
    world.begin(train, 20 * STEPS)
    ports = {port for rank in range(3) for port in tcp_ports(world.pid(rank))}
    refused = sum(is_refused(port) for port in ports for _ in range(HALF_OPEN))
    assert [outcome.value for outcome in world.finish()] == [wanted(3, 20 * STEPS)] * 3
    # A control, a bulk and a message connection per pair; those that a rank accepted share a port: 1 + (3 + 1) + 6.
    assert len(ports) == 11
    assert refused == HALF_OPEN * len(ports)
    check_flat(before, footprint(world))


def is_refused(port: int) -> bool:
    try:
        with call(("127.0.0.1", port)) as stranger:
            stranger.sendall(b"garbage")
    except ConnectionRefusedError:
        return True
    return False


def check_flat(before: list[tuple[int, int]], after: list[tuple[int, int]]) -> None:
    for (files_before, memory_before), (files, memory) in zip(before, after, strict=True):
        assert files <= files_before
        assert memory < memory_before + GROWTH_KIB
