"""Forked children: they may outlive their rank, and may not use its groups."""

from __future__ import annotations

import os
import signal
import sys
import time

import pytest
import torch
import torch.distributed as dist

IN_TIME_S = 20.0  # what a busy machine may take


def start_child() -> int:
    """On a rank: a child that does nothing and holds every descriptor; its pid."""
    child = os.fork()
    if child == 0:
        signal.pause()
        os._exit(0)
    return child


def leave_by(how: str) -> None:
    """On a rank: its end."""
    if how == "destroy":
        dist.destroy_process_group()
    if how == "exit":
        sys.exit(0)  # SystemExit is no Exception: the rank's loop ends with it
    os._exit(0)


def all_reduce() -> float:
    """On a rank."""
    tensor = torch.ones(8)
    dist.all_reduce(tensor)
    return float(tensor[0])


def in_a_child(call: str) -> tuple[str, int]:
    """On a rank: the error that a forked child gets from a call, and the child's status."""
    calls = {
        "all_reduce": lambda: dist.all_reduce(torch.ones(8)),
        "all_reduce later": lambda: dist.all_reduce(torch.ones(8), async_op=True).wait(),
        "barrier": dist.barrier,
    }
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            calls[call]()
            said = "nothing"
        except Exception as error:
            said = str(error)
        os.write(writing, said.encode()[:4000])
        os._exit(3)
    os.close(writing)
    with os.fdopen(reading) as stream:
        said = stream.read()
    return said, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def destroy_in_a_child() -> int:
    """On a rank: a forked child ends the groups it sees, as a library's clean-up may; its status."""
    child = os.fork()
    if child == 0:
        dist.destroy_process_group()
        os._exit(3)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def rank_of_two(rank: int, store: str) -> bool:
    """In a child that is a rank itself: whether asynchronous work, for which nobody waits, ends."""
    dist.init_process_group("ringdp", store=dist.FileStore(store, 2), rank=rank, world_size=2)
    tensor = torch.full((1000,), float(rank + 1))
    work = dist.all_reduce(tensor, async_op=True)
    future, deadline = work.get_future(), time.monotonic() + IN_TIME_S
    while not future.done() and time.monotonic() < deadline:
        time.sleep(0.001)
    if not future.done():
        return False
    dist.destroy_process_group()
    return bool((tensor == 3).all())


def ranks_in_children(store: str) -> list[int]:
    """On a rank: it has used a group and ended it, and two children make one of their own; their status."""
    dist.all_reduce(torch.ones(8), async_op=True).wait()
    dist.destroy_process_group()
    children = []
    for rank in range(2):
        children.append(os.fork())
        if children[-1] == 0:
            try:
                os._exit(0 if rank_of_two(rank, store) else 1)
            finally:
                os._exit(2)
    return [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]


def test_children_of_a_process_that_used_groups_make_their_own(make_world, tmp_path):
    assert make_world(1).run(ranks_in_children, str(tmp_path / "store")) == [[0, 0]]


@pytest.mark.parametrize("how", ["destroy", "exit", "gone"])
def test_a_child_that_outlives_its_rank_does_not_stand_in_for_it(make_world, how):
    world = make_world(3)
    child = world.run(start_child, ranks=[1])[0]
    try:
        world.begin(leave_by, how, ranks=[1])
        for outcome in world.attempt(all_reduce, ranks=[0, 2]):
            assert outcome.error.startswith("DistBackendError: "), outcome
            assert "rank 1" in outcome.error
        os.kill(child, 0)  # it is still there
    finally:
        os.kill(child, signal.SIGKILL)


@pytest.mark.parametrize("call", ["all_reduce", "all_reduce later", "barrier"])
def test_a_child_that_calls_is_refused_by_name(make_world, call):
    world = make_world(2)
    for rank, (said, status) in enumerate(world.run(in_a_child, call)):
        assert f"this process was forked from rank {rank}" in said
        assert status == 3
    assert world.run(all_reduce) == [2.0] * 2


def test_a_child_that_destroys_leaves_the_rank_its_groups(make_world):
    world = make_world(2)
    assert world.run(destroy_in_a_child) == [3] * 2
    assert world.run(all_reduce) == [2.0] * 2
