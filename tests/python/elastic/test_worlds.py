"""Worlds in a store: one at a time, whoever writes; waits that end when a newer one comes."""

from __future__ import annotations

import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta

import pytest
import torch.distributed as dist
from ringdp.elastic.worlds import Request, VoidableStore, World, WorldIsOver, Worlds

SOON_S = 0.05


@pytest.fixture
def store():
    """That of a test alone."""
    return dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=20))


@pytest.fixture
def worlds(store):
    """Of three members, and another connection to them for each call of `of()`."""
    worlds = Worlds(store)
    worlds.begin(range(3), min_ranks=2)
    worlds.of = lambda: Worlds(dist.TCPStore("127.0.0.1", store.port, is_master=False, timeout=timedelta(seconds=20)))
    return worlds


def test_a_world_is_in_the_store_as_it_is(worlds):
    assert worlds.of().current() == World(0, (0, 1, 2)) == World.of(World(0, (0, 1, 2)).text())
    assert worlds.of().terms() == {"ranks": 3, "min_ranks": 2}


def test_the_first_to_replace_a_world_wins(worlds):
    old = worlds.current()
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda closed: worlds.of().follow(old, closed=closed), [False, True] * 4))
    assert set(found) == {worlds.current()}
    assert worlds.current().epoch == 1 and worlds.current().members == old.members
    assert worlds.follow(old, closed=not worlds.current().is_closed) == worlds.current()


def test_what_is_published_becomes_the_newest_whoever_writes_too(worlds):
    with ThreadPoolExecutor(8) as pool:
        published = list(pool.map(lambda member: worlds.of().publish([member]), range(8)))
    assert sorted(world.epoch for world in published) == list(range(1, 9))
    assert worlds.current() == max(published, key=lambda world: world.epoch)


@contextmanager
def waiting(worlds, members):
    """A pool of threads, whose waits end with the test, however that does."""
    with ThreadPoolExecutor(members) as pool:
        try:
            yield pool
        finally:
            worlds.publish([])


def wait_for(condition, limit_s=20.0):
    until = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.005)


def gather(worlds, member, limit_s=20.0, late=None):
    world = worlds.current()
    worlds.gather(world, member, limit_s, (late if late is not None else []).append)
    return world


def test_all_members_wait_for_each_other(worlds):
    with ThreadPoolExecutor(3) as pool:
        early = [pool.submit(gather, worlds.of(), member) for member in (0, 2)]
        time.sleep(SOON_S)
        assert not any(future.done() for future in early)
        assert {future.result() for future in [*early, pool.submit(gather, worlds.of(), 1)]} == {worlds.current()}


def test_a_newer_world_ends_the_wait_and_a_late_member_is_named(worlds):
    late = []
    with ThreadPoolExecutor(1) as pool:
        waits = pool.submit(gather, worlds.of(), 1, SOON_S, late)
        time.sleep(4 * SOON_S)
        assert late == [[0, 2]] and not waits.done()
        worlds.publish([1])
        with pytest.raises(WorldIsOver, match="world 0 of 3 is over: world 1 follows"):
            waits.result()


def test_a_newcomer_names_nobody_while_the_others_make_steps_of_the_world_before(worlds):
    late = []
    worlds.publish([0, 1, 2, 3])
    with waiting(worlds, 4) as pool:
        waits = [pool.submit(gather, worlds.of(), 3, SOON_S, late)]
        time.sleep(4 * SOON_S)
        assert late == []
        waits.append(pool.submit(gather, worlds.of(), 1))
        wait_for(lambda: late)
        assert late == [[0, 2]] and not waits[0].done()
        waits += [pool.submit(gather, worlds.of(), member) for member in (0, 2)]
        assert {future.result() for future in waits} == {worlds.current()}
    assert len(late) == 1


def test_one_that_has_not_come_into_a_world_is_still_a_newcomer_in_the_next(worlds):
    late = []
    with waiting(worlds, 2) as pool:
        for members in ([0, 1, 2, 3], [0, 1, 2, 3, 4]):
            worlds.publish(members)
            waits = pool.submit(gather, worlds.of(), 3, SOON_S, late)
            time.sleep(4 * SOON_S)
            assert late == [] and not waits.done()
        worlds.publish([3, 4])
        wait_for(waits.done)
        pool.submit(gather, worlds.of(), 3, SOON_S, late)
        wait_for(lambda: late)  # newcomers among themselves
        assert late == [[4]]
        gather(worlds.of(), 4)
        worlds.publish([3, 4, 5])
        waits = pool.submit(gather, worlds.of(), 5, SOON_S, late)
        time.sleep(4 * SOON_S)
        assert late == [[4]] and not waits.done()  # as both are in a world now


def test_who_has_left_a_world_is_known_to_those_in_it(worlds):
    world = worlds.current()
    assert worlds.of().left(world) == set()
    worlds.publish([0, 1, 2, 3])
    assert worlds.of().left(world) == set()  # one that joins disturbs nobody
    worlds.publish([0, 1, 3])
    assert worlds.of().left(world) == {2}
    with waiting(worlds, 1) as pool:
        waits = pool.submit(gather, worlds.of(), 0)
        wait_for(lambda: worlds.left(world) == {0, 2})
        worlds.publish([1])
        assert isinstance(waits.exception(), WorldIsOver)
        assert worlds.left(world) == {0, 2}


def test_no_world_follows_one_that_is_closed(worlds):
    old = worlds.current()
    closed = worlds.follow(old, closed=True)
    assert closed == worlds.current() == World(1, (0, 1, 2), is_closed=True)
    assert worlds.publish([0]) == closed
    assert worlds.follow(old, closed=True) == closed


def test_what_is_published_first_cannot_be_closed_by_those_before(worlds):
    old = worlds.current()
    worlds.publish([0, 1, 2, 3])
    assert worlds.follow(old, closed=True) == World(1, (0, 1, 2, 3))


def voidable(worlds):
    world = worlds.current()
    return VoidableStore(worlds.store_of(world), lambda: worlds.check(world))


def test_a_newer_world_ends_whatever_waits_in_the_rendezvous_of_an_older_one(worlds):
    store = voidable(worlds)
    store.set("there", "x")
    assert (store.get("there"), store.check(["there"]), store.check(["absent"])) == (b"x", True, False)
    assert store.add("count", 2) == 2
    other = worlds.of()
    threading.Timer(SOON_S, lambda: other.publish([0])).start()
    with pytest.raises(WorldIsOver):
        store.get("absent")
    assert store.get("there") == b"x"
    waits = (
        lambda: store.check(["there", "absent"]),
        lambda: store.multi_get(["absent"]),
        lambda: store.wait(["absent"]),
    )
    for wait in waits:
        with pytest.raises(WorldIsOver):
            wait()


def test_a_rank_that_never_comes_costs_no_timeout_once_the_world_is_over(worlds):
    other, store = worlds.of(), voidable(worlds)
    threading.Timer(4 * SOON_S, lambda: other.publish([0])).start()
    began = time.monotonic()
    with pytest.raises(dist.DistBackendError, match="world 0 of 3 is over"):
        dist.init_process_group("ringdp", store=store, rank=0, world_size=3, timeout=timedelta(seconds=60))
    assert time.monotonic() - began < 10
    assert not dist.is_initialized()


def test_keys_of_worlds_long_over_go(store, worlds):
    if not hasattr(store, "list_keys"):
        pytest.skip("this torch cannot list keys")
    counts = []
    for epoch in range(6):
        world = worlds.current()
        assert world.epoch == epoch
        for member in world.members:
            worlds.store_of(world).set(f"0/{member}", "")
            with ThreadPoolExecutor(3) as pool:
                list(pool.map(lambda member: gather(worlds.of(), member), world.members))
        counts.append(store.num_keys())
        worlds.publish([member + epoch % 3 for member in world.members])  # all stay, or some
    assert counts[2:] == counts[2:3] * 4
    old = [f"elastic/epoch/{epoch}/" for epoch in range(5)]
    assert not [key for key in store.list_keys() if any(part in key for part in old)]


def test_keys_stay_of_a_world_that_its_members_are_still_in(worlds):
    """However many have joined meanwhile: a group may be made there."""
    world = worlds.current()
    worlds.store_of(world).set("group", "")
    for joined in range(3, 7):
        worlds.publish(range(joined + 1))
    assert worlds.store_of(world).check(["group"])
    newest = worlds.current()
    with ThreadPoolExecutor(len(newest.members)) as pool:
        list(pool.map(lambda member: gather(worlds.of(), member), newest.members))
    worlds.publish(newest.members)
    assert not worlds.store_of(world).check(["group"]) or not hasattr(dist.TCPStore, "list_keys")


def test_requests_come_in_order(worlds):
    asked = [Request("join", 7), Request("replace", 1, "has not answered")]
    assert worlds.requests() == []
    for request in asked:
        worlds.of().ask(request)
    worlds.of().ask(Request("join", 9), host=1)
    assert worlds.requests() == asked
    assert worlds.requests() == []
    worlds.ask(asked[0])
    assert (worlds.requests(), worlds.requests(1), worlds.requests(2)) == (asked[:1], [Request("join", 9)], [])


def test_how_many_may_come_is_said(worlds):
    assert worlds.of().coming() == 0
    worlds.expect(3)
    assert worlds.of().coming() == 3
    with ThreadPoolExecutor(8) as pool:  # one of each host
        list(pool.map(lambda host: worlds.of().expect(host, host), range(8)))
    assert worlds.coming() == sum(range(8))
    worlds.expect(0, 7)
    assert worlds.coming() == sum(range(7))


def test_deaths_are_survived_once_a_training_has_begun(worlds):
    assert not worlds.of().is_training()
    worlds.begin_training(2.5)
    assert worlds.of().is_training() and worlds.of().patience() == 2.5


def test_ranks_go_host_by_host_and_the_others_stay_as_they_are():
    world = World(3, (0, 1, 2, 3), hosts=(0, 0, 1, 1))
    assert world.with_host(1, [7, 3]) == World(4, (0, 1, 3, 7), hosts=(0, 0, 1, 1))
    assert world.with_host(2, [8]) == World(4, (0, 1, 2, 3, 8), hosts=(0, 0, 1, 1, 2))
    assert world.with_host(0, []) == World(4, (2, 3), hosts=(1, 1))
    assert world.with_host(1, []) == World(4, (0, 1))
    assert World(0, (0, 1)).with_host(0, [1, 4]) == World(1, (1, 4))
    assert [world.on_host(host) for host in range(3)] == [[0, 1], [2, 3], []]
    assert World(0, (5, 6)).on_host(0) == [5, 6]


def test_a_shard_is_kept_on_another_host_where_no_host_has_more_than_half_of_the_ranks():
    draw = random.Random(3)
    assert World(0, (0, 1, 2)).shift() == 1
    for _ in range(200):
        counts = [draw.randint(1, 5) for _ in range(draw.randint(1, 6))]
        hosts = [host for host, count in enumerate(counts) for _ in range(count)]
        size = len(hosts)
        shift = World(0, tuple(range(size)), hosts=tuple(hosts)).shift()
        together = sum(hosts[rank] == hosts[(rank + shift) % size] for rank in range(size))
        assert shift == 1 if size == 1 else 0 < shift < size
        assert (together == 0) == (2 * max(counts) <= size), (counts, shift)


def test_a_copy_goes_to_the_next_rank_on_another_host():
    world = World(0, tuple(range(5)), hosts=(0, 0, 1, 1, 2))
    assert [world.away(rank) for rank in range(5)] == [2, 2, 4, 4, 0]
    assert [World(0, (4, 7)).away(rank) for rank in range(2)] == [None, None]


def test_hosts_whose_processes_may_still_join_and_their_memory_are_in_the_store(worlds):
    worlds.expect(2)
    worlds.expect(1, host=3)
    assert worlds.of().coming_hosts() == {0, 3} and worlds.coming() == 3
    worlds.expect(0)
    assert worlds.of().coming_hosts() == {3}
    worlds.lend_memory("/proc/7/fd/8", 3)
    assert worlds.of().memory(3) == "/proc/7/fd/8"
