"""Hosts of an elastic job in a store: who has come, who is lost, who ends by itself; and the watchdog of each."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
import torch.distributed as dist
from ringdp.elastic import hosts as module
from ringdp.elastic.hosts import LEFT, Endpoint, HostIsLost, Hosts

TIMEOUT_S, LIMIT_S = 1.0, 20.0


@pytest.fixture
def store():
    """That of a test alone."""
    return dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=20))


@pytest.fixture
def come(store, monkeypatch):
    """come(number): another host of the job, with a connection of its own; the first serves the store."""
    came = []
    monkeypatch.setattr(Hosts, "_watch_store", lambda hosts: None)  # it would end this process

    def make(number=None, ranks=2, told=""):
        own = dist.TCPStore("127.0.0.1", store.port, is_master=False, timeout=timedelta(seconds=20))
        given = {"serves": not came, "ranks": ranks, "timeout_s": TIMEOUT_S, "number": number, "told": told}
        came.append(Hosts(own, **given))
        return came[-1]

    return make


def count(*hosts):
    """All of these do, at once."""
    for host in hosts:
        host._counted = 0.0
        host.attend()


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


def test_the_first_hosts_that_live_are_waited_for(come):
    said = []
    first = come(ranks=1)
    come(ranks=7).leave()
    with ThreadPoolExecutor(1) as pool:
        ranks_of = pool.submit(first.gather, 3, 3, LIMIT_S, said.append)
        time.sleep(0.1)
        assert not ranks_of.done()
        come(ranks=4), come(ranks=2)
        assert ranks_of.result() == {0: 1, 2: 4, 3: 2}
    assert said == []
    come()
    assert first.gather(2, 3, LIMIT_S, said.append) == {0: 1, 2: 4, 3: 2}  # no more than may be


def test_hosts_that_do_not_come_are_counted(come, monkeypatch):
    monkeypatch.setattr(module, "_SAY_AFTER_S", 0.0)
    said = []
    with pytest.raises(HostIsLost, match=r"^1 of 2 hosts came within 0.3 s$"):
        come().gather(2, 2, 0.3, said.append)
    assert said == ["1 of 2 hosts came so far, the others are waited for, 0.3 s in all"]


def test_what_hosts_were_told_must_be_alike(come):
    first = come(told="x")
    come(told="x")
    with pytest.raises(ValueError, match="this host was told y, and that with the store x: make them alike"):
        come(told="y")
    assert first.gather(2, 3, LIMIT_S, print) == {0: 2, 1: 2}  # it has not come


def test_a_host_too_many_is_refused_unless_another_goes(come):
    first, second, third = come(), come(), come()
    third.find_room(3)
    first.training_begins()
    with ThreadPoolExecutor(1) as pool:
        finds = pool.submit(third.find_room, 2)
        until = time.monotonic() + 2 * TIMEOUT_S
        while not finds.done() and time.monotonic() < until + LIMIT_S:
            count(first, second)
            time.sleep(0.02)
        with pytest.raises(HostIsLost, match="2 hosts there, and --nnodes allows 2"):
            finds.result()
        finds = pool.submit(third.find_room, 2)
        second.leave()  # its launcher starts it again, say
        finds.result(LIMIT_S)


def test_a_silent_host_is_lost_for_all_and_for_itself(come):
    hosts = [come() for _ in range(3)]
    for host in hosts:
        host.training_begins()
    with ThreadPoolExecutor(2) as pool:
        of_each = [*pool.map(lambda host: looks(host, lambda found: found), hosts[:2])]
    assert of_each[0] == of_each[1]
    ((number, why),) = of_each[0]
    assert number == 2 and why.startswith("nothing was heard of host 2 (") and why.endswith(") for 1 s")
    assert hosts[0].gone() == [2]
    late = come()
    assert late.gone() == [2] and looks(late, lambda found: late.look() is not None) == []
    with pytest.raises(HostIsLost, match="the others have gone on without this host: nothing was heard of host 2"):
        looks(hosts[2], lambda found: False)


def test_before_the_training_hosts_may_be_silent_for_longer(come):
    first, _ = come(), come()
    until = time.monotonic() + 3 * TIMEOUT_S
    assert looks(first, lambda found: time.monotonic() > until) == []


def test_after_the_training_hosts_may_be_silent_for_longer(come, monkeypatch):
    """Also for one that has left and waits for the others."""
    monkeypatch.setattr(module, "_STOPPED_S", 3 * TIMEOUT_S)
    first, _ = come(), come()
    first.training_begins()
    first.training_ends()
    until = time.monotonic() + 3 * TIMEOUT_S
    assert looks(first, lambda found: time.monotonic() > until) == []
    assert first.leave(is_stopped=lambda: True) == []


def test_a_host_that_was_stopped_itself_does_not_take_others_for_lost(come):
    first, second = come(), come()
    first.training_begins()
    looks(first, lambda found: first.look() is not None)
    for _ in range(3):
        time.sleep(2 * TIMEOUT_S)  # nothing was looked at
        assert not first.look()
        count(second)


def test_a_host_that_ends_by_itself_is_not_lost_and_waited_for(come):
    first, second = come(), come()
    with ThreadPoolExecutor(1) as pool:
        leaves = pool.submit(first.leave)
        until = time.monotonic() + 2 * TIMEOUT_S
        while time.monotonic() < until:
            count(second)
            time.sleep(0.01)
        assert not leaves.done()
        assert looks(second, lambda found: found) == [(0, LEFT)]
        second.leave()
        assert leaves.result(LIMIT_S) == []


def test_hosts_that_are_lost_while_the_one_with_the_store_waits_are_told(come):
    first, _ = come(), come()
    with ThreadPoolExecutor(1) as pool:
        ((number, why),) = pool.submit(first.leave).result(LIMIT_S)
    assert number == 1 and why.startswith("nothing was heard of host 1 (")


def test_the_one_with_the_store_that_was_taken_for_lost_does_not_wait_for_ever(come):
    first, second = come(), come()
    second._store.set("state/0", "nothing was heard of host 0")
    with ThreadPoolExecutor(1) as pool:
        failed = pool.submit(first.leave).result(LIMIT_S)
    assert failed == [(0, "the others have gone on without this host: nothing was heard of host 0")]


def test_the_user_s_second_signal_ends_the_wait(come, monkeypatch):
    monkeypatch.setattr(module, "_STOPPED_S", 0.1)
    first, second = come(), come()
    stopped = []
    with ThreadPoolExecutor(1) as pool:
        leaves = pool.submit(first.leave, lambda: bool(stopped))
        until = time.monotonic() + TIMEOUT_S
        while not leaves.done():
            count(second)
            if time.monotonic() > until:
                stopped.append(1)
            time.sleep(0.01)
        assert stopped and leaves.result() == []


def test_the_end_of_the_job_is_heard_on_all_hosts(come):
    first, second, third = come(), come(), come()
    first.end_job("too few")
    for host in (second, third):
        with pytest.raises(HostIsLost, match=r"^host 0 \(\S+\): too few$"):
            looks(host, lambda found: False)


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
from ringdp.elastic.hosts import Hosts
hosts = Hosts.__new__(Hosts)
hosts.timeout_s, hosts.period_s, hosts._waited_s, hosts._counted = 1.0, 0.1, 0.0, float("inf")
hosts.end = lambda: print("ended", flush=True)
import threading
threading.Thread(target=hosts._watch_store, daemon=True).start()
until = time.monotonic() + 3
while time.monotonic() < until:
    hosts.attend()
    time.sleep(0.01)
print("alive", flush=True)
time.sleep(30)
"""


def test_a_supervisor_that_waits_for_the_store_ends_its_host(run_warm):
    done = run_warm(WATCHED)
    assert done.returncode == 1
    assert done.stdout.split() == ["alive", "ended"]
    assert "the store has not answered for 1 s, so this host is cut off from the others" in done.stderr
    ends = WATCHED.replace("time.sleep(30)", "hosts.close(); hosts.timeout_s = 0; time.sleep(1)")
    done = run_warm(ends)
    assert (done.returncode, done.stdout.split()) == (0, ["alive"])
