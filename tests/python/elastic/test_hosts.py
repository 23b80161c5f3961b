"""Hosts of an elastic job in a store: who has come, who is lost, who ends by itself; and the watchdog of each."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
import torch.distributed as dist
from ringdp.elastic import hosts as module
from ringdp.elastic.hosts import LEFT, Endpoint, HostIsLost, Hosts

TIMEOUT_S, LIMIT_S = 0.5, 20.0


@pytest.fixture
def store():
    """That of a test alone."""
    return dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=20))


@pytest.fixture
def come(store):
    """come(number): another host of the job, with a connection of its own; the first serves the store."""
    came = []

    def make(number=None, ranks=2, timeout_s=TIMEOUT_S):
        own = dist.TCPStore("127.0.0.1", store.port, is_master=False, timeout=timedelta(seconds=20))
        came.append(Hosts(own, serves=not came, ranks=ranks, timeout_s=timeout_s, number=number))
        return came[-1]

    return make


def looks(host, until):
    """What look() says of others until this holds for it."""
    found, end = [], time.monotonic() + LIMIT_S
    while not until(found):
        assert time.monotonic() < end, found
        found += host.look() or []
        time.sleep(0.01)
    return found


def test_hosts_are_numbered_as_they_come_or_as_they_say(come):
    assert [come().number, come().number] == [0, 1]
    assert come(number=5).number == 5
    assert come(number=5).number == 2  # that one is taken: it has come again
    assert come(number=3).number == 3
    assert come().number == 4
    assert come().number == 6


def test_the_first_hosts_are_waited_for(come):
    said = []
    first = come(ranks=1)
    with ThreadPoolExecutor(1) as pool:
        ranks_of = pool.submit(first.gather, 3, LIMIT_S, said.append)
        time.sleep(0.1)
        assert not ranks_of.done()
        come(ranks=4), come(ranks=2)
        assert ranks_of.result() == {0: 1, 1: 4, 2: 2}
    assert said == []


def test_hosts_that_do_not_come_are_counted(come, monkeypatch):
    monkeypatch.setattr(module, "_SAY_AFTER_S", 0.0)
    said = []
    with pytest.raises(HostIsLost, match=r"^1 of 2 hosts came within 0.3 s$"):
        come().gather(2, 0.3, said.append)
    assert said == ["1 of 2 hosts came so far, the others are waited for, 0.3 s in all"]


def test_what_hosts_were_told_must_be_alike(come):
    first, second = come(), come()
    first.agree("x")
    second.agree("x")
    with pytest.raises(ValueError, match="this host was told y, and the one that serves the store x: make them alike"):
        second.agree("y")


def test_a_silent_host_is_lost_for_all_and_for_itself(come):
    hosts = [come() for _ in range(3)]
    for host in hosts:
        host.training_begins()
    with ThreadPoolExecutor(2) as pool:
        of_each = [*pool.map(lambda host: looks(host, lambda found: found), hosts[:2])]
    assert of_each[0] == of_each[1]
    ((number, why),) = of_each[0]
    assert number == 2 and why.startswith("nothing was heard of host 2 (") and why.endswith(") for 0.5 s")
    assert hosts[0].living() == [0, 1]
    with pytest.raises(HostIsLost, match="the others have gone on without this host: nothing was heard of host 2"):
        looks(hosts[2], lambda found: False)


def test_before_the_training_hosts_may_be_silent_for_longer(come):
    first, _ = come(), come()
    until = time.monotonic() + 3 * TIMEOUT_S
    assert looks(first, lambda found: time.monotonic() > until) == []


def test_a_host_that_was_stopped_itself_does_not_take_others_for_lost(come):
    first, second = come(), come()
    first.training_begins()
    looks(first, lambda found: first.look() is not None)
    for _ in range(3):
        time.sleep(2 * TIMEOUT_S)  # nothing was looked at
        assert not first.look()
        second.beat()


def test_a_host_that_ends_by_itself_is_not_lost_and_waited_for(come):
    first, second = come(), come()
    with ThreadPoolExecutor(1) as pool:
        leaves = pool.submit(first.leave)
        until = time.monotonic() + 2 * TIMEOUT_S
        while time.monotonic() < until:
            second.beat()
            time.sleep(0.01)
        assert not leaves.done()
        assert looks(second, lambda found: found) == [(0, LEFT)]
        second.leave()
        leaves.result(LIMIT_S)


def test_a_host_that_never_leaves_does_not_hold_the_one_with_the_store(come):
    first, _ = come(), come()
    with ThreadPoolExecutor(1) as pool:
        pool.submit(first.leave).result(LIMIT_S)


def test_the_end_of_the_job_is_heard_on_all_hosts(come):
    first, second, third = come(), come(), come()
    first.end_job("too few")
    for host in (second, third):
        with pytest.raises(HostIsLost, match=r"^host 0 \(\S+\): too few$"):
            looks(host, lambda found: False)


def test_without_the_host_that_serves_the_store_nobody_takes_part(come):
    first, second = come(), come()
    second.give_up("not I")
    first.beat()
    third = come()
    with ThreadPoolExecutor(1) as pool:
        gives_up = pool.submit(first.give_up, "no hosts")
        with pytest.raises(HostIsLost, match="no hosts"):
            looks(third, lambda found: False)
        third.leave()
        gives_up.result(LIMIT_S)


def test_where_the_store_is():
    assert Endpoint("127.0.0.1", 1).is_here()
    assert not Endpoint("192.0.2.1", 1).is_here()  # of nobody
    with pytest.raises(ValueError, match="--rdzv-endpoint nobody.invalid:7: 'nobody.invalid' has no address here"):
        Endpoint("nobody.invalid", 7).is_here()


def test_the_second_supervisor_of_a_host_does_not_serve(store):
    first, serves = Endpoint("127.0.0.1", store.port).store(LIMIT_S)
    assert not serves
    first.set("there", "x")
    assert store.get("there") == b"x"


WATCHED = """
import time
from types import SimpleNamespace
from ringdp.elastic.hosts import Watchdog
dog = Watchdog(SimpleNamespace(timeout_s=0.3, period_s=0.05), lambda: print("ended", flush=True), "host:1")
dog.start()
until = time.monotonic() + 1
while time.monotonic() < until:
    dog.alive()
    time.sleep(0.01)
print("alive", flush=True)
time.sleep(30)
"""


def test_a_supervisor_that_waits_for_the_store_ends_its_host(run_warm):
    done = run_warm(WATCHED)
    assert done.returncode == 1
    assert done.stdout.split() == ["alive", "ended"]
    assert "the store at host:1 has not answered for 0.3 s, so this host is cut off from the others" in done.stderr
