"""Forked children: they may outlive their rank, and may not use its groups."""

from __future__ import annotations

import os
import signal
import sys

import pytest
import torch
import torch.distributed as dist


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
