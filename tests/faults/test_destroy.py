"""destroy_process_group in any state: within two seconds, twice, after an error, or not at all.

Groups that come and go leave threads, descriptors, mappings and memory as they were.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from ranks import HERE, leave
from wire import open_files, resident_kib, threads

IN_TIME_S = 5.0  # what a busy machine may take; without notice it would be the group's minute

WITHOUT_DESTROY = """
import sys, torch, torch.distributed as dist, ringdp
ringdp.register()
rank, port, how = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
store = dist.TCPStore("127.0.0.1", port, is_master=False)
dist.init_process_group("ringdp", store=store, rank=rank, world_size=2)
x = torch.ones(1000)
dist.all_reduce(x)
if how == "in flight":
    work = dist.all_reduce(x, async_op=True)
elif how == "split":
    pair = dist.group.WORLD.split_group([0, 1], None, None, "pair")
    pair.allreduce([x]).wait()
elif how == "exception":
    raise SystemExit("on purpose")
"""


def start_work(count: int) -> None:
    """On a rank: work that is never waited for; another rank never joins in."""
    HERE.work = dist.all_reduce(torch.ones(count), async_op=True)


def error_of_work() -> str:
    """On a rank: how the work of start_work() ended."""
    with pytest.raises(dist.DistBackendError) as error:
        HERE.work.wait()
    return str(error.value)


def destroy_twice() -> tuple[float, str]:
    """On a rank: the first as usual; the second is torch's own plain refusal."""
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    took = leave()
    backend.shutdown()
    backend.abort()
    try:
        dist.destroy_process_group()
    except (AssertionError, ValueError) as error:
        return took, type(error).__name__
    return took, ""


def all_reduce() -> float:
    """On a rank."""
    tensor = torch.ones(4)
    dist.all_reduce(tensor)
    return float(tensor[0])


@pytest.mark.parametrize("count", [8, 1 << 22])
def test_with_work_in_flight(make_world, count):
    world = make_world(3)
    world.run(start_work, count, ranks=[0, 2])
    assert max(world.leave()) < IN_TIME_S
    for text in world.run(error_of_work, ranks=[0, 2]):
        assert "while all_reduce(SUM, float32" in text or "has left the group" in text, text


def test_twice(make_world):
    world = make_world(2)
    world.run(all_reduce)
    for took, second in world.run(destroy_twice):
        assert took < IN_TIME_S
        assert second in ("", "AssertionError", "ValueError")


def test_while_peers_still_wait(make_world):
    world = make_world(3)
    world.run(all_reduce)
    world.begin(all_reduce, ranks=[0, 2])
    time.sleep(0.2)
    left = time.monotonic()
    assert world.run(leave, ranks=[1])[0] < IN_TIME_S
    for outcome in world.finish([0, 2]):
        assert "PeerLost: " in outcome.error, outcome.error
        assert f"rank 1 (pid {world.pid(1)} on " in outcome.error, outcome.error
        assert "has left the group (destroy_process_group or exit) after 1 collectives" in outcome.error
        assert outcome.ended - left < IN_TIME_S
    assert max(world.run(leave, ranks=[0, 2])) < IN_TIME_S


def test_a_rank_that_leaves_first_does_not_harm_the_last_collective(make_world):
    """Ranks end at different times; what all of them called is finished by all of them."""
    world = make_world(4)
    for _ in range(5):
        assert world.run(all_reduce) == [4.0] * 4
    assert world.run(leave, ranks=[0])[0] < IN_TIME_S
    time.sleep(0.2)
    assert max(world.run(leave, ranks=[1, 2, 3])) < IN_TIME_S
    world.join()
    assert world.run(all_reduce) == [4.0] * 4


def test_after_an_error(make_world):
    world = make_world(3, timeout_s=1)
    assert all("Timeout" in outcome.error for outcome in world.attempt(all_reduce, ranks=[0, 1]))
    assert max(world.leave()) < IN_TIME_S


@pytest.mark.parametrize(
    ("how", "transport"),
    [
        ("idle", "shm"),
        ("exception", "shm"),
        ("in flight", "tcp"),
        ("split", "tcp"),
        *(pytest.param(how, "tcp", marks=pytest.mark.long) for how in ("idle", "exception")),
        *(pytest.param(how, "shm", marks=pytest.mark.long) for how in ("in flight", "split")),
    ],
)
def test_a_process_that_just_ends(how, transport):
    """Two ordinary scripts without destroy_process_group: they end at once, as if there were no group."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    environment = {**os.environ, "RINGDP_TRANSPORT": transport, "OMP_NUM_THREADS": "1"}
    how_to_run = {"env": environment, "stderr": subprocess.PIPE, "text": True}
    ranks = [
        subprocess.Popen([sys.executable, "-c", WITHOUT_DESTROY, str(rank), str(store.port), how], **how_to_run)
        for rank in range(2)
    ]
    try:
        errors = [rank.communicate(timeout=60)[1] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    wanted = 1 if how == "exception" else 0
    assert [rank.returncode for rank in ranks] == [wanted] * 2, errors
    assert not any("terminate" in text or "PeerLost" in text for text in errors), errors


IN_THE_MIDDLE = """
import threading, torch, torch.distributed as dist, ringdp
ringdp.register()
dist.init_process_group("ringdp", store=dist.HashStore(), rank=0, world_size=1)
def train():
    while True:
        dist.all_reduce(torch.ones(8))
for _ in range(3):
    threading.Thread(target=train, daemon=True).start()
ended = []
for _ in range(500):
    dist.all_reduce(torch.ones(8), async_op=True).get_future().then(lambda future: ended.append(sum(range(10_000))))
"""


def test_a_process_that_ends_with_threads_and_callbacks_in_the_middle_of_calls(run_python):
    ended = run_python(IN_THE_MIDDLE)
    assert ended.returncode == 0, ended.stderr
    assert "terminate" not in ended.stderr


CYCLES = 50
MANY = 10_000
GROWTH_KIB = 4096


def cycle(count: int) -> None:
    """On a rank: create, use, destroy."""
    for _ in range(count):
        group = dist.new_group(range(HERE.size))
        dist.all_reduce(torch.ones(1 << 16), group=group)
        dist.destroy_process_group(group)


def footprint(world) -> list[tuple[int, int, int, int]]:
    pids = [world.pid(rank) for rank in range(world.size)]
    mappings = [len(Path(f"/proc/{pid}/maps").read_text().splitlines()) for pid in pids]
    return [(threads(p), open_files(p), resident_kib(p), m) for p, m in zip(pids, mappings, strict=True)]


def check_growth(world, before: list[tuple[int, int, int, int]]) -> None:
    for now, then in zip(footprint(world), before, strict=True):
        assert now[0] <= then[0], "threads"
        assert now[1] <= then[1], "descriptors"
        assert now[2] < then[2] + GROWTH_KIB, "resident memory"
        assert now[3] <= then[3] + 8, "mappings"


def test_fifty_groups_leave_nothing(make_world):
    world = make_world(2)
    world.run(cycle, 10)
    before = footprint(world)
    world.run(cycle, CYCLES)
    check_growth(world, before)


@pytest.mark.long
def test_ten_thousand_groups_leave_nothing(make_world):
    """In the life of one process; what torch itself keeps of a group's name is part of the growth."""
    world = make_world(2)
    world.run(cycle, MANY // 10)
    before = footprint(world)
    for _ in range(9):
        world.run(cycle, MANY // 10)
    check_growth(world, before)


def test_leaving_and_joining_again(make_world):
    world = make_world(2)
    world.leave()
    world.join()
    before = footprint(world)
    for _ in range(5):
        world.leave()
        world.join()
    for now, then in zip(footprint(world), before, strict=True):
        assert now[:2] <= then[:2], "threads and descriptors"
