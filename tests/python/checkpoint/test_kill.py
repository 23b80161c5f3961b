"""SIGKILL at any moment of a save: the latest complete checkpoint always loads, and the next save cleans up."""

from __future__ import annotations

import itertools
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import ringdp
import torch
from ranks import HERE, World
from ringdp.checkpoint.directory import numbered
from states import Sharded

checkpoint = ringdp.checkpoint
ROUNDS = 25
# Python's audit events, each raised just before the change
CHANGES = ("os.mkdir", "os.rename", "os.rmdir", "os.remove", "shutil.rmtree")


def counting(count: int, rank: int = 0, size: int = 1) -> Sharded:
    """A state that is `count` everywhere: a mixture of two saves would show."""
    holder = Sharded({("parameter", "w"): torch.full((3000,), float(count))}, rank, size, seed=0)
    holder.values = {"count": count}
    return holder


def count_of(folder: Path) -> int:
    """The count of the latest checkpoint, whose every element and setting agree."""
    found = checkpoint.read(folder)
    values = found.tensors["parameter"]["w"].unique().tolist()
    assert values == [found.settings["count"]]
    return int(values[0])


def save_on(folder: Path, count: int, told: int) -> None:
    """Saves until killed, and says so after each."""
    while True:
        count += 1
        checkpoint.save(folder, counting(count), keep=2)
        os.write(told, b"+")


def forked(action: Callable[[int], None]) -> tuple[int, int]:
    """Forks; the child does action(pipe to write to). Its pid, and the pipe to read."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            action(write)
        finally:
            os._exit(0)
    os.close(write)
    return child, read


def reaped(child: int, read: int) -> bytes:
    """Kills the child; all that it has said."""
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    with os.fdopen(read, "rb") as pipe:
        return pipe.read()


def kill_at_random(folder: str, rounds: int) -> list[str]:
    """On a rank process, which has no threads and may fork: what went wrong, by round."""
    shelf, draw, wrong = Path(folder), random.Random(1), []
    began = time.monotonic()
    for count in range(2):
        checkpoint.save(shelf, counting(count))
    usual_s = (time.monotonic() - began) / 2
    for number in range(rounds):
        before = count_of(shelf)
        child = forked(lambda told, before=before: save_on(shelf, before, told))
        time.sleep(draw.uniform(0, 4 * usual_s))  # the moment of death, not a wait for anything
        # Of a dead child at most one save is complete that it has not told.
        said = before + len(reaped(*child))
        found = count_of(shelf)
        if not said <= found <= said + 1:
            wrong.append(f"round {number}: {said} saves were acknowledged, {found} is there")
    return wrong


def kill_at_every_step(folder: str) -> int:
    """Kills a save just before its 1st, 2nd, ... change of the file system, until one gets through; how many."""
    shelf = Path(folder)
    for count in range(2):
        checkpoint.save(shelf, counting(count))
    for step in range(1, 200):
        before = count_of(shelf)
        child, read = forked(lambda told, count=before + 1, step=step: save_until(shelf, count, step, told))
        finished = os.read(read, 1) == b"+"  # or nothing, when it has killed itself
        reaped(child, read)
        found = count_of(shelf)
        assert found in (before, before + 1), (step, found)
        if finished:
            assert found == before + 1
            checkpoint.save(shelf, counting(0))
            left = [path.name for path in shelf.iterdir() if path.name.startswith((".unfinished", ".removed"))]
            assert left == []
            return step
    raise AssertionError("200 steps and no end")


def save_until(shelf: Path, count: int, step: int, told: int) -> None:
    seen = 0

    def audit(event: str, args: tuple[object, ...]) -> None:
        nonlocal seen
        if event in CHANGES or (event == "open" and str(shelf) in str(args[0])):
            seen += 1
            if seen == step:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(audit)
    checkpoint.save(shelf, counting(count))
    os.write(told, b"+")


def test_a_kill_at_a_random_moment_leaves_the_checkpoint_before_it(tmp_path):
    with World(1) as world:
        assert world.run(kill_at_random, str(tmp_path), ROUNDS) == [[]]


def test_a_kill_before_every_single_change_leaves_the_checkpoint_before_it(tmp_path):
    with World(1) as world:
        (steps,) = world.run(kill_at_every_step, str(tmp_path))
    assert steps > 8  # lock, folder, a rank's file, index, manifest, rename, and the removal of the oldest


def save_for_ever(folder: str) -> None:
    for count in itertools.count(1):
        checkpoint.save(folder, counting(count, HERE.rank, HERE.size), keep=2)


@pytest.mark.parametrize("victim", [0, 1])
def test_a_rank_that_is_killed_takes_no_checkpoint_with_it(victim, tmp_path):
    """The other rank gets an error instead of waiting for ever, and what is on the shelf is whole."""
    with World(2) as world:
        world.join()
        world.begin(save_for_ever, str(tmp_path))
        deadline = time.monotonic() + 60
        while not any(p.name >= "checkpoint-000003" for p in numbered(tmp_path)) and time.monotonic() < deadline:
            time.sleep(0.001)
        world.kill(victim)
        (outcome,) = world.finish([1 - victim])
        assert outcome.error
    assert count_of(tmp_path) >= 3
    checkpoint.save(tmp_path, counting(0))
    assert not list(tmp_path.glob(".unfinished-*"))
