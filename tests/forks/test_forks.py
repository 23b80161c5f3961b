"""Forked children may outlive their rank, may not use its groups, may be ranks or workers; threads may do everything.

Groups that come and go with children forked in between leave a rank as large as it was.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks import HERE, World, join, leave

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
    """In a child that is a rank itself: whether asynchronous work that is never waited for ends."""
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


ROWS, BATCH, WORKERS, EPOCHS = 24, 4, 2, 3


class Rows(torch.utils.data.Dataset):
    """Row i is full of i; with it comes the worker that made it."""

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        worker = torch.utils.data.get_worker_info()
        return torch.full((1000,), float(index)), -1 if worker is None else worker.id


def epochs(persistent: bool) -> tuple[set[int], list[float]]:
    """On a rank: which workers made rows, and the sums over ranks of what every batch held."""
    # The ranks of these tests are daemons, which Python would not let have children.
    multiprocessing.current_process()._config["daemon"] = False
    loader = torch.utils.data.DataLoader(
        Rows(), BATCH, num_workers=WORKERS, multiprocessing_context="fork", persistent_workers=persistent
    )
    makers, sums = set(), []
    running = torch.ones(1 << 20)
    for _ in range(EPOCHS):
        # Workers are forked at the start of an epoch: while this collective is under way.
        work = dist.all_reduce(running, async_op=True)
        for rows, workers in loader:
            makers.update(workers.tolist())
            total = rows.sum(dtype=torch.float64) * (HERE.rank + 1)
            dist.all_reduce(total)
            sums.append(total.item())
        work.wait()
    assert torch.equal(running, torch.full_like(running, float(HERE.size**EPOCHS)))
    return makers, sums


@pytest.mark.parametrize("persistent", [False, True])
def test_workers_come_and_go_while_ranks_communicate(make_world, persistent):
    per_batch = [1000.0 * sum(range(first, first + BATCH)) for first in range(0, ROWS, BATCH)]
    for makers, sums in make_world(2).run(epochs, persistent):
        assert makers == set(range(WORKERS))
        assert sums == [3.0 * batch for batch in per_batch] * EPOCHS


WARM_UP, CYCLES = 6, 18
SLACK_MAPS = 8  # the allocator's own
SETTLED_WITHIN_S = 10.0


def cycle(number: int) -> None:
    """On a rank: the default group anew every third time, two groups in it, a child while they live."""
    if number % 3 == 0:
        leave()
        join(60.0, {})
    groups = [dist.new_group(range(HERE.size)), dist.new_group(range(HERE.size), pg_options={"algorithm": "direct"})]
    works = [dist.all_reduce(torch.ones(1 << 14), group=group, async_op=True) for group in groups]
    child = os.fork()
    if child == 0:
        os._exit(0)
    for work in works:
        work.wait()
    os.waitpid(child, 0)
    for group in groups:
        dist.destroy_process_group(group)


def cycles(first: int, last: int) -> None:
    """On a rank."""
    for number in range(first, last):
        cycle(number)


def size_of(pid: int) -> dict[str, int]:
    """Descriptors, threads and mappings of a process."""
    return {
        "descriptors": len(os.listdir(f"/proc/{pid}/fd")),
        "threads": len(os.listdir(f"/proc/{pid}/task")),
        "maps": len(Path(f"/proc/{pid}/maps").read_text().splitlines()),
    }


def grown(world: World, allowed: list[dict[str, int]]) -> list[str]:
    """What is more than it may be. Asked until nothing is: the last group's end may still be under way."""
    deadline = time.monotonic() + SETTLED_WITHIN_S
    while True:
        sizes = [size_of(world.pid(rank)) for rank in range(world.size)]
        pairs = zip(sizes, allowed, strict=True)
        more = [f"{what}: {now[what]} of {may[what]}" for now, may in pairs for what in now if now[what] > may[what]]
        if not more or time.monotonic() > deadline:
            return more


def test_a_rank_stays_as_large_as_it_was(make_world):
    world = make_world(2)
    world.run(cycles, 0, WARM_UP)
    allowed = [size_of(world.pid(rank)) for rank in range(world.size)]
    for size in allowed:
        size["maps"] += SLACK_MAPS
    world.run(cycles, WARM_UP, CYCLES)
    assert grown(world, allowed) == []


SCRIPT = Path(__file__).with_name("start_script.py")


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_ranks_of_every_start_method(run_python, method):
    result = run_python(str(SCRIPT), method)
    assert result.returncode == 0, result.stderr


# Groups made and driven from threads other than the main one.

GROUPS, CALLS = 4, 40


def in_thread(function: Callable[..., Any], *args: Any) -> Any:
    """The function's value from a thread of its own; its error is raised here."""
    values: list[Any] = []
    errors: list[BaseException] = []

    def call() -> None:
        try:
            values.append(function(*args))
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return values[0]


def total(value: float) -> float:
    tensor = torch.full((5000,), value)
    dist.all_reduce(tensor)
    assert float(tensor.min()) == float(tensor.max())
    return float(tensor[0])


def life_in_threads() -> list[float]:
    """On a rank: joins in one thread, communicates in another and in the main one, leaves in a third."""
    in_thread(join, 60.0, {})
    totals = [in_thread(total, 1.0), total(2.0)]
    in_thread(dist.destroy_process_group)
    in_thread(join, 60.0, {})
    totals.append(total(3.0))
    return totals


def several_groups() -> list[int]:
    """On a rank: one thread per group, all at once; how many wrong results each saw."""
    groups = [dist.new_group(range(HERE.size)) for _ in range(GROUPS)]
    wrong = [0] * GROUPS
    together = threading.Barrier(GROUPS)

    def drive(index: int) -> None:
        together.wait()
        for call in range(CALLS):
            tensor = torch.full((1 + 997 * index,), float(call + HERE.rank))
            work = dist.all_reduce(tensor, group=groups[index], async_op=call % 2 == 1)
            if work is not None:
                work.wait()
            expected = float(sum(call + rank for rank in range(HERE.size)))
            wrong[index] += int((tensor != expected).sum())

    threads = [threading.Thread(target=drive, args=(index,)) for index in range(GROUPS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for group in groups:
        dist.destroy_process_group(group)
    return wrong


def test_groups_may_be_made_and_ended_in_any_thread():
    with World(2) as world:
        assert world.run(life_in_threads) == [[2.0, 4.0, 6.0]] * 2


def test_several_groups_driven_by_several_threads_at_once(make_world):
    assert make_world(3).run(several_groups) == [[0] * GROUPS] * 3
