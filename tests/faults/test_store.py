"""The store through which ranks meet: far away, slow to be asked, stopped, or gone."""

from __future__ import annotations

import os
import resource
import signal
import time
from collections.abc import Iterator
from datetime import timedelta
from multiprocessing.connection import Connection

import pytest
import torch
import torch.distributed as dist
from calls import Before
from ranks import HERE, World, spawner

FAR_S = 0.3  # the longest that a look at the store was once given
LIMIT_S = 0.5
LONG_S = 30.0  # a deadline long after the ranks are told
SLACK_S = 20.0  # what a busy machine may add


class FarAway(Before):
    """A store whose answers take so long that no shorter wait sees one, as torch's TCPStore over such a network."""

    def wait(self, keys: list[str], timeout: timedelta = timedelta(seconds=60)) -> None:
        if timeout.total_seconds() < FAR_S:
            time.sleep(timeout.total_seconds())
            raise dist.DistStoreError("wait timeout")
        super().wait(keys, timeout)


def join_through(far: bool, late_s: float) -> float:
    """On a rank: init_process_group, rank 1 late; the sum of an all-reduce."""
    store = dist.TCPStore("127.0.0.1", HERE.port, is_master=False)
    if HERE.rank == 1:
        time.sleep(late_s)
    store = FarAway(store) if far else store
    dist.init_process_group("ringdp", store=store, rank=HERE.rank, world_size=HERE.size, timeout=timedelta(seconds=20))
    tensor = torch.ones(3)
    dist.all_reduce(tensor)
    return float(tensor[0])


@pytest.mark.parametrize("far", [False, True])
def test_ranks_meet_however_far_the_store_is_and_waiting_is_silent(far):
    with World(2) as world:
        assert world.run(join_through, far, 0.5) == [2.0] * 2
        assert [world.stderr(rank) for rank in range(2)] == ["", ""]


def serve_store(pipe: Connection) -> None:
    """A process that has nothing but the store, until it is killed."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    pipe.send(store.port)
    signal.pause()


@pytest.fixture
def served() -> Iterator[tuple[int, int]]:
    """Port and process id of a store in a process of its own."""
    mine, theirs = spawner.Pipe()
    process = spawner.Process(target=serve_store, args=(theirs,), daemon=True)
    process.start()
    yield mine.recv(), process.pid
    process.kill()
    process.join()


def meet_without_a_store(port: int, pid: int, how: signal.Signals) -> float:
    """On a rank: makes a group for two whose store is stopped or killed first; the seconds until that is an error."""
    from ringdp import backend

    store = dist.TCPStore("127.0.0.1", port, is_master=False)
    options = backend.Options(timedelta(seconds=LIMIT_S))
    os.kill(pid, how)
    start = time.monotonic()
    with pytest.raises(dist.DistBackendError, match="the rendezvous store (is gone|has not answered for)"):
        backend._C.Backend(store, 0, 2, "of two", options)
    return time.monotonic() - start


@pytest.mark.parametrize("how", [signal.SIGSTOP, signal.SIGKILL])
def test_a_store_that_does_not_answer_is_an_error_at_the_deadline(served, how):
    with World(1) as world:
        assert world.run(meet_without_a_store, *served, how)[0] < LIMIT_S + SLACK_S


def join_with(setting: str, how: str) -> str:
    """On a rank: init_process_group for half a minute, with a bad setting on rank 1; the error."""
    options = None
    if HERE.rank == 1 and how == "environment":
        os.environ["RINGDP_ORDER"] = setting
    if HERE.rank == 1 and how == "options":
        options = {"order": setting}
    store = dist.TCPStore("127.0.0.1", HERE.port, is_master=False)
    if HERE.rank == 1 and how == "no descriptors":
        lowest_free = os.dup(0)
        os.close(lowest_free)
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free, 4096))
    with pytest.raises(dist.DistBackendError) as error:
        dist.init_process_group(
            "ringdp",
            store=store,
            rank=HERE.rank,
            world_size=HERE.size,
            timeout=timedelta(seconds=LONG_S),
            pg_options=options,
        )
    return str(error.value)


@pytest.mark.parametrize("how", ["environment", "options", "no descriptors"])
def test_what_keeps_a_rank_from_coming_is_told_to_the_others_at_once(how):
    with World(2) as world:
        start = time.monotonic()
        others, own = world.run(join_with, "sideways", how)
        assert time.monotonic() - start < LONG_S
    reason = "open files" if how == "no descriptors" else "invalid value 'sideways' for order"
    assert reason in own
    assert "given up by rank 1" in others and reason in others


class Interrupt(Exception):
    """What a signal handler raises, as that of Ctrl-C does."""


def join_until_a_signal(is_signalled: bool) -> bool:
    """On a rank: init_process_group of ranks of which one never comes; whether a handler ended it."""

    def handle(*_: object) -> None:
        raise Interrupt

    before = signal.signal(signal.SIGALRM, handle)
    store = dist.TCPStore("127.0.0.1", HERE.port, is_master=False)
    try:
        if is_signalled:
            signal.setitimer(signal.ITIMER_REAL, 0.3)
        world, timeout = HERE.size + 1, timedelta(seconds=LONG_S)
        dist.init_process_group("ringdp", store=store, rank=HERE.rank, world_size=world, timeout=timeout)
    except Interrupt:
        return True
    finally:
        signal.signal(signal.SIGALRM, before)
    return False


def test_signal_handlers_run_while_a_group_is_made_and_the_others_are_told():
    with World(2) as world:
        world.begin(join_until_a_signal, True, ranks=[0])
        world.begin(join_until_a_signal, False, ranks=[1])
        interrupted, told = world.finish()
    assert interrupted.value is True
    assert (
        "Aborted: the rendezvous was given up by rank 0 (pid " in told.error and "interrupted by a signal" in told.error
    )
