"""Why a rank has left: its exception is quoted to those that wait for it and to those that come later."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch
import torch.distributed as dist
from ranks import HERE, World
from ringdp import last_words

SAID = 'has left the group with "ValueError: no data \\x1b[31m" after 1 collectives'

SCRIPT = """
import sys
from datetime import timedelta
import torch, torch.distributed as dist
store = dist.TCPStore("127.0.0.1", int(sys.argv[1]), is_master=False)
dist.init_process_group("ringdp", store=store, rank=1, world_size=2, timeout=timedelta(seconds=60))
dist.all_reduce(torch.ones(4))
raise ValueError("no data \\x1b[31m\\nand more")
"""


def all_reduce() -> float:
    """On a rank."""
    tensor = torch.ones(4)
    dist.all_reduce(tensor)
    return float(tensor[0])


def fail() -> None:
    raise ValueError("no data \x1b[31m\nand more")


def fail_and_destroy() -> None:
    """On a rank: as many a script does."""
    try:
        fail()
    finally:
        dist.destroy_process_group()


def fail_as_spawned() -> None:
    """On a rank: what torch.multiprocessing.spawn makes of an exception, in a process of multiprocessing as this one is."""
    try:
        fail()
    except ValueError:
        sys.exit(1)


@pytest.mark.parametrize("how", [fail_and_destroy, fail_as_spawned])
def test_an_exception_is_quoted(make_world, how):
    world = make_world(3)
    world.run(all_reduce)
    world.begin(all_reduce, ranks=[0])
    world.begin(how, ranks=[2])
    waited = world.finish([0])[0]
    late = world.attempt(all_reduce, ranks=[1])[0]
    for outcome in (waited, late):
        assert outcome.error.startswith("DistBackendError: PeerLost: rank "), outcome.error
        assert f"rank 2 (pid {world.pid(2)} on " in outcome.error and SAID in outcome.error, outcome.error
        assert "all_reduce(SUM, float32 x 4) #2" in outcome.error, outcome.error


def test_that_of_a_script_is_quoted():
    """It does not destroy its group: Python prints the exception and ends."""
    with World(2, transport="tcp") as world:
        command = [sys.executable, "-c", SCRIPT, str(world.store.port)]
        environment = {**os.environ, "RINGDP_TRANSPORT": "tcp"}
        script = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE)
        try:
            world.begin(join_two, ranks=[0])
            told = world.finish([0])[0].error
            assert b"ValueError: no data" in script.communicate(timeout=60)[1]
        finally:
            script.kill()
    assert f"PeerLost: rank 1 (pid {script.pid} on " in told and " at 127.0.0.1) " in told and SAID in told, told


def join_two() -> None:
    """On a rank: into the script's group, for two collectives, of which the script calls one."""
    store = dist.TCPStore("127.0.0.1", HERE.port, is_master=False)
    dist.init_process_group("ringdp", store=store, rank=0, world_size=2)
    all_reduce()
    all_reduce()


def join_and_split(ranks: list[int]) -> None:
    """On a rank: a collective of a group of some, in which the last has left."""
    group = dist.new_group(ranks)
    if HERE.rank == ranks[-1]:
        dist.destroy_process_group(group)
    elif HERE.rank in ranks:
        dist.all_reduce(torch.ones(4), group=group)


def test_ranks_of_a_group_of_some_are_named_as_in_the_job(make_world):
    world = make_world(3)
    told = world.attempt(join_and_split, [0, 2])[0].error
    assert f"PeerLost: rank 1 (rank 2 of the job, pid {world.pid(2)} on " in told, told


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no")


def raised(error: BaseException, cause: BaseException | None = None) -> str:
    """What is told of it while it is handled."""
    try:
        if cause is None:
            raise error
        try:
            raise cause
        except Exception:
            raise error  # noqa: B904
    except BaseException:
        return last_words.current()


@pytest.mark.parametrize(
    ("error", "cause", "told"),
    [
        (ValueError("one\ntwo"), None, "ValueError: one"),
        (ValueError(), None, "ValueError"),
        (KeyError("a"), None, "KeyError: 'a'"),
        (KeyboardInterrupt(), None, "KeyboardInterrupt"),
        (Unspeakable(), None, "Unspeakable"),
        (ValueError("\ud800"), None, "ValueError: \\ud800"),
        (ValueError("é" * 500), None, "ValueError: " + "é" * 94),
        (SystemExit(3), None, "SystemExit: 3"),
        (SystemExit(0), None, ""),
        (SystemExit(), None, ""),
        (SystemExit(1), ValueError("why"), "ValueError: why"),
    ],
)
def test_what_is_told(monkeypatch, error, cause, told):
    monkeypatch.delattr(sys, "last_value", raising=False)
    assert raised(error, cause) == told
    assert last_words.current() == "", "it is handled"
