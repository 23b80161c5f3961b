"""A rank that dies or is given up: every survivor gets PeerLost within a second, with rank, pid and last words.

Nothing stays behind, and a rank given up in mid-pass neither writes into a survivor's tensor nor reads a wrong result.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
import ringdp
import torch
import torch.distributed as dist
from calls import OWN_CPU, signal_after
from ranks import HERE, Outcome, World, leave
from ringdp import last_words
from torch import nn

IN_TIME_S = 5.0  # what a busy machine may take; without notice it would be the group's minute
LARGE = 1 << 22
VICTIMS = [0, 2]


def train(steps: int, count: int) -> int:
    """On a rank: all-reduces, checked."""
    for step in range(steps):
        tensor = torch.full((count,), float(step + HERE.rank))
        dist.all_reduce(tensor)
        assert float(tensor[-1]) == sum(step + rank for rank in range(HERE.size))
    return steps


def trade(steps: int, count: int) -> int:
    """On a rank: messages to and from every other rank, checked."""
    others = [rank for rank in range(HERE.size) if rank != HERE.rank]
    for step in range(steps):
        got = {rank: torch.zeros(count) for rank in others}
        work = [dist.irecv(tensor, rank) for rank, tensor in got.items()]
        work += [dist.isend(torch.full((count,), float(step + HERE.rank)), rank) for rank in others]
        for each in work:
            each.wait()
        assert all(float(tensor[-1]) == step + rank for rank, tensor in got.items())
    return steps


def start_children() -> int:
    """On a rank: a forked child that holds all its descriptors and outlives it; the child's pid."""
    child = os.fork()
    if child == 0:
        time.sleep(30)
        os._exit(0)
    return child


def what_is_open() -> tuple[list[str], str]:
    """On a rank: files that are open or mapped, and child processes."""
    names = set()
    for fd in os.listdir("/proc/self/fd"):
        try:
            names.add(os.readlink(f"/proc/self/fd/{fd}"))
        except FileNotFoundError:
            continue  # the listing's own
    for line in Path("/proc/self/maps").read_text().splitlines():
        names.update(line.split(maxsplit=5)[5:])
    return sorted(names), Path("/proc/thread-self/children").read_text().strip()


def check_survivors(world: World, victim: int, killed: float, outcomes: list[Outcome]) -> None:
    """Every survivor was told in time which rank died, and can end its group in time."""
    named = f"rank {victim} (pid {world.pid(victim)} on "
    for outcome in outcomes:
        assert "PeerLost: " in outcome.error, outcome.error
        assert outcome.error.startswith("DistBackendError: "), outcome.error
        assert named in outcome.error, outcome.error
        late = outcome.ended - killed
        assert late < IN_TIME_S, f"rank {outcome.rank} was told after {late:.2f} s"
    survivors = [outcome.rank for outcome in outcomes]
    refused = world.attempt(train, 1, 4, ranks=survivors)
    assert all("PeerLost: " in outcome.error and named in outcome.error for outcome in refused)
    assert all("(this rank called all_reduce(SUM, float32 x 4) #" in outcome.error for outcome in refused), refused
    assert max(world.run(leave, ranks=survivors)) < IN_TIME_S
    assert all(children == "" for _, children in world.run(what_is_open, ranks=survivors))


def survivors_of(victim: int) -> list[int]:
    return [rank for rank in range(4) if rank != victim]


@pytest.mark.parametrize("victim", VICTIMS)
@pytest.mark.parametrize("steps_before", [0, 5])
def test_while_no_rank_calls(make_world, victim, steps_before):
    world = make_world()
    world.run(train, steps_before, 1000)
    killed = world.kill(victim)
    outcomes = world.attempt(train, 1, 1000, ranks=survivors_of(victim))
    check_survivors(world, victim, killed, outcomes)


@pytest.mark.parametrize("victim", VICTIMS)
def test_while_the_others_wait_for_it(make_world, victim):
    world = make_world()
    world.run(train, 1, 1000)
    world.begin(train, 1, LARGE, ranks=survivors_of(victim))
    time.sleep(0.2)
    killed = world.kill(victim)
    check_survivors(world, victim, killed, world.finish(survivors_of(victim)))


@pytest.mark.parametrize("victim", VICTIMS)
@pytest.mark.parametrize("count", [1000, LARGE])
@pytest.mark.parametrize("task", [train, trade])
def test_in_the_middle_of_a_loop(make_world, task, victim, count):
    world = make_world()
    world.run(task, 1, count)
    world.begin(task, 1_000_000, count)
    time.sleep(0.4)
    killed = world.kill(victim)
    check_survivors(world, victim, killed, world.finish(survivors_of(victim)))


def make_group(how: str) -> None:
    """On a rank: a group of all, for which one waits half an hour."""
    if how == "new_group":
        dist.new_group(range(HERE.size), timeout=timedelta(minutes=30))
    else:
        dist.group.WORLD.split_group(list(range(HERE.size)), timedelta(minutes=30), None, "all")


@pytest.mark.parametrize("how", ["new_group", "split_group"])
@pytest.mark.parametrize("goodbye", [False, True])
def test_while_a_group_is_made(make_world, how, goodbye):
    """Its other groups tell: of one that died, and of one that has left them and ended since."""
    world = make_world(3)
    world.run(train, 1, 1000)
    if goodbye:
        world.run(leave, ranks=[2])
    world.begin(make_group, how, ranks=[0, 1])
    killed = world.kill(2)
    for outcome in world.finish([0, 1]):
        assert "PeerLost: " in outcome.error, outcome.error
        assert f"rank 2 (pid {world.pid(2)} on " in outcome.error, outcome.error
        assert outcome.ended - killed < IN_TIME_S


def learn(victim: int, stage: int) -> tuple[list[tuple[str, ...]], str]:
    """On a rank: steps, before the third of which one rank is killed: the names in each bucket, and what is told."""
    model = nn.Sequential(nn.Linear(300, 300), nn.Linear(300, 2))
    ddp = ringdp.DistributedDataParallel(model, bucket_cap_mb=0.3, zero_stage=stage)
    buckets = []
    try:
        for step in range(3):
            if step == 2 and victim == HERE.rank:
                os.kill(os.getpid(), signal.SIGKILL)
            ddp(torch.ones(1, 300)).sum().backward()
            buckets = [bucket.parameters for bucket in ddp.explain().buckets] if stage < 3 else []
    except dist.DistBackendError as error:
        return buckets, str(error)
    return buckets, ""


@pytest.mark.parametrize("stage", [0, 2, 3])
def test_in_training(run_on_fresh_ranks, stage):
    """Errors say which bucket or unit this rank was at, and in which collective."""
    world = run_on_fresh_ranks(3, transport="tcp")
    world.join()
    world.begin(learn, 2, stage)
    for buckets, told in (outcome.value for outcome in world.finish([0, 1])):
        assert "PeerLost: " in told and f"rank 2 (pid {world.pid(2)} on " in told and " at 127.0.0.1) " in told, told
        texts = [
            f"for bucket {n} of {len(buckets)} of DistributedDataParallel: the gradients of {', '.join(names[:3])}"
            for n, names in enumerate(buckets)
        ] or ["This rank was gathering unit 0 (zero_stage=3)", "This rank was gathering unit 1 (zero_stage=3)"]
        assert any(text in told for text in texts), told
        assert re.search(r"\(this rank (was in|called|had queued) \w+\(.+ x .+\) #\d+, \d+ bytes\)", told), told


def test_two_at_once(make_world):
    world = make_world()
    world.begin(train, 1_000_000, 1000)
    time.sleep(0.2)
    killed = world.kill(1)
    world.kill(3)
    for outcome in world.finish([0, 2]):
        assert re.search(r"PeerLost: .*rank [13] \(pid \d+ on ", outcome.error), outcome.error
        assert outcome.ended - killed < IN_TIME_S


@pytest.mark.parametrize("victim", VICTIMS)
def test_a_forked_child_that_lives_on_hides_nothing(make_world, victim, transport):
    """Its child holds the sockets open. The kernel names the dead process anyway."""
    world = make_world(timeout_s=60)
    world.run(train, 1, 1000)
    child = world.run(start_children, ranks=[victim])[0]
    try:
        world.begin(train, 1, 1000, ranks=survivors_of(victim))
        time.sleep(0.1)
        killed = world.kill(victim)
        outcomes = world.finish(survivors_of(victim), within=20)
    finally:
        os.kill(child, signal.SIGKILL)
    check_survivors(world, victim, killed, outcomes)


def test_nothing_has_a_name_that_could_stay_behind(transport):
    """A killed rank cannot clean up, so there must be nothing to: no file of /dev/shm or /tmp is open or mapped."""
    listed = names_of_ours()
    with World(4, transport=transport) as world:
        before = [set(names) for names, _ in world.run(what_is_open)]
        world.join()
        world.run(train, 2, LARGE)
        for rank, (names, _) in enumerate(world.run(what_is_open)):
            new = set(names) - before[rank]
            assert new, "at least the sockets are new"
            assert [n for n in new if n.startswith(("/dev/shm/", "/tmp/"))] == []
        for rank in range(4):
            world.kill(rank)
    assert names_of_ours() <= listed


def names_of_ours() -> set[str]:
    """What lies in the shared folders and has our name; a folder is of a tool, which may run beside this test."""
    return {
        entry.path
        for folder in ("/dev/shm", "/tmp")
        for entry in os.scandir(folder)
        if "ringdp" in entry.name and not entry.is_dir()
    }


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
    """On a rank: what torch.multiprocessing.spawn makes of an exception; this, too, is such a process."""
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


COUNT = 1 << 26  # a pass takes tens of milliseconds of a core
STOP_AFTER_S = 0.005
GAVE_UP = r"rank 0 \(pid \d+ on .+\) gave up"
_kept: dict[str, torch.Tensor] = {}


def reduce_while_rank_1_stops() -> tuple[str, bool]:
    """On a rank: the error of an all-reduce in shared memory, and whether rank 1's slice was finished."""
    tensor = _kept["tensor"] = ringdp.empty(COUNT).fill_(1)
    dist.barrier()
    if HERE.rank == 1:
        signal_after(signal.SIGSTOP, STOP_AFTER_S, OWN_CPU)  # a busy machine does not move the moment
    message = ""
    try:
        dist.all_reduce(tensor)
    except dist.DistBackendError as error:
        message = str(error)
    finished = float(tensor[-1]) == 2
    tensor.fill_(-1)
    return message, finished


def broadcast_while_rank_1_stops() -> str:
    """On a rank: the error of a broadcast from rank 0 in shared memory, during which rank 1 stops."""
    tensor = ringdp.empty(COUNT).fill_(HERE.rank)
    dist.barrier()
    if HERE.rank == 1:
        signal_after(signal.SIGSTOP, STOP_AFTER_S, OWN_CPU)  # a busy machine does not move the moment
    try:
        dist.broadcast(tensor, 0)
    except dist.DistBackendError as error:
        tensor.fill_(-1)
        return str(error)
    return ""


def is_untouched() -> bool:
    return bool((_kept["tensor"] == -1).all())


@pytest.fixture
def world() -> Iterator[World]:
    with World(2) as ranks:
        ranks.join(2)
        yield ranks


def test_a_rank_stopped_in_mid_pass_is_shut_out(world):
    world.begin(reduce_while_rank_1_stops)
    [survivor] = world.finish(ranks=[0])
    message, finished = survivor.value
    assert "did not finish in time" in message and "rank 1" in message and "stopped" in message, survivor
    assert not finished, "rank 1 was not in the middle of its pass"
    assert world.stderr(0).count("its memory is private from now on") == 1
    woken = world.signal(1, signal.SIGCONT)
    [stopped] = world.finish(ranks=[1])
    assert stopped.ended > woken, stopped  # after the rest of its piece
    assert re.search(GAVE_UP, stopped.value[0]), stopped
    world.begin(is_untouched, ranks=[0])
    assert world.finish(ranks=[0])[0].value is True


def test_a_late_reader_has_no_result(world):
    world.begin(broadcast_while_rank_1_stops)
    [root] = world.finish(ranks=[0])
    assert "did not finish in time" in root.value and "rank 1" in root.value, root
    world.signal(1, signal.SIGCONT)
    [late] = world.finish(ranks=[1])
    assert re.search(GAVE_UP, late.value), late
