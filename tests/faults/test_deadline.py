"""Every wait ends at a deadline: the group's or an earlier one, and the error names the rank that is missing.

Late is not dead: a stopped rank is reported, waited for until the deadline, and unharmed when it comes back.
"""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from ranks import HERE, LIMIT_S, World, error_of
from ringdp.ddp.wrapper import DistributedDataParallel
from ringdp.testing import parameters_hash

GROUP_S = 1.5
SLACK_S = 30.0  # what a busy machine may add
LATE_S = 2.0  # a rank that is still in time


def call(seconds_late: float) -> float:
    """On a rank: an all-reduce after some time."""
    time.sleep(seconds_late)
    tensor = torch.ones(8)
    dist.all_reduce(tensor)
    return float(tensor[0])


def give_up_early() -> tuple[str, float, float]:
    """On a rank: a wait shorter than the peer's delay, then one that lasts; the error, its time, the sum."""
    tensor = torch.ones(8)
    work = dist.all_reduce(tensor, async_op=True)
    start = time.monotonic()
    with pytest.raises(dist.DistBackendError) as error:
        work.wait(timedelta(milliseconds=300))
    waited = time.monotonic() - start
    work.wait()
    return str(error.value), waited, float(tensor[0])


def call_with_own_timeout() -> None:
    """On a rank: the operation's own deadline, shorter than the group's."""
    group = dist.new_group(range(HERE.size), timeout=timedelta(seconds=1))
    if HERE.rank != 1:
        dist.barrier(group=group)


class Interrupt(Exception):
    """What a signal handler raises, as that of Ctrl-C does."""


def is_ended_by_a_handler(call: Callable[[], object], seconds: float) -> bool:
    """Whether what a signal handler raises after some time ends the call."""

    def handle(*_: object) -> None:
        raise Interrupt

    before = signal.signal(signal.SIGALRM, handle)
    try:
        signal.setitimer(signal.ITIMER_REAL, seconds)
        call()
    except Interrupt:
        return True
    finally:
        signal.signal(signal.SIGALRM, before)
    return False


def be_interrupted(told: str) -> tuple[bool, float]:
    """On a rank that waits for another: whether a handler ends the wait, not the work; the sum after all."""
    tensor = torch.ones(8)
    work = dist.all_reduce(tensor, async_op=True)
    is_interrupted = is_ended_by_a_handler(work.wait, 0.01) and not work.is_completed()
    Path(told).touch()
    work.wait()
    return is_interrupted, float(tensor[0])


def call_when(told: str) -> float:
    """On a rank: an all-reduce once that file is there, or too late."""
    deadline = time.monotonic() + SLACK_S / 2
    while not Path(told).exists() and time.monotonic() < deadline:
        time.sleep(0.001)
    return call(0)


def test_signal_handlers_run_while_a_rank_waits(make_world, tmp_path):
    world, told = make_world(2), str(tmp_path / "told")
    world.begin(be_interrupted, told, ranks=[0])
    world.begin(call_when, told, ranks=[1])
    assert [outcome.value for outcome in world.finish()] == [(True, 2.0), 2.0]


def test_a_missing_rank_is_named_at_the_groups_timeout(make_world):
    world = make_world(3, timeout_s=GROUP_S)
    for outcome in world.attempt(call, 0, ranks=[0, 2]):
        assert "DistBackendError: Timeout: " in outcome.error, outcome.error
        waited = re.search(
            r"all_reduce\(SUM, float32 x 8\) #1 did not finish in time: waited (\d+\.\d) s", outcome.error
        )
        assert waited and float(waited[1]) >= GROUP_S, outcome.error
        assert f"rank 1 (pid {world.pid(1)} on " in outcome.error, outcome.error
        accused = outcome.error.rpartition(" gave up: ")[2]  # the rank that came to the deadline first is named as well
        assert "rank 2 (pid" not in accused and "rank 0 (pid" not in accused
        assert GROUP_S - 0.2 < outcome.ended - outcome.began < GROUP_S + SLACK_S


def test_a_rank_in_time_is_no_timeout(make_world):
    world = make_world(3, timeout_s=SLACK_S)
    world.begin(call, 0.5, ranks=[1])
    world.begin(call, 0, ranks=[0, 2])
    assert [outcome.value for outcome in world.finish()] == [3.0, 3.0, 3.0]


def test_a_wait_that_gives_up_leaves_the_operation_going(make_world):
    world = make_world(3)
    world.begin(call, LATE_S, ranks=[1])
    world.begin(give_up_early, ranks=[0, 2])
    for outcome in world.finish([0, 2]):
        error, waited, total = outcome.value
        assert error.startswith("Timeout: wait(timeout) gave up after 300 ms")
        assert 0.25 < waited < LATE_S
        assert total == 3.0
    assert world.finish([1])[0].value == 3.0


def test_every_group_has_its_own_timeout(make_world):
    world = make_world(3)
    outcomes = world.attempt(call_with_own_timeout)
    for rank in (0, 2):
        assert "Timeout: " in outcomes[rank].error and "barrier() #1 did not" in outcomes[rank].error
        assert outcomes[rank].ended - outcomes[rank].began < 4


LARGE = 1 << 20
DEADLINE_S = 2


def train_until(end: str, count: int) -> int:
    """On a rank: checked all-reduces until that file exists; how many. Rank 0 looks, and says when some are done."""
    steps = 0
    go_on = torch.ones(1)
    while go_on.item() > 0:
        tensor = torch.full((count,), float(steps + HERE.rank))
        dist.all_reduce(tensor)
        assert torch.equal(tensor, torch.full((count,), float(sum(steps + r for r in range(HERE.size)))))
        steps += 1
        if steps == 3 and HERE.rank == 0:
            Path(f"{end}.begun").touch()
        go_on = torch.tensor([float(HERE.rank == 0 and not Path(end).exists())])
        dist.all_reduce(go_on, op=dist.ReduceOp.MAX)
    return steps


def once() -> None:
    """On a rank: one all-reduce."""
    dist.all_reduce(torch.ones(100))


def wait_until(what: str, found: Callable[[], object]) -> None:
    """Until it is there."""
    deadline = time.monotonic() + LIMIT_S
    while not found():
        assert time.monotonic() < deadline, what
        time.sleep(0.01)


def warnings_about(world: World, rank: int, by: int) -> list[str]:
    return [line for line in world.stderr(by).splitlines() if "warning" in line and f"rank {rank} (pid " in line]


@pytest.mark.parametrize(("victim", "count"), [(0, 100), (2, 100), (1, LARGE)])
def test_a_stopped_rank_is_waited_for(make_world, tmp_path, victim, count):
    world, end = make_world(timeout_s=LIMIT_S), tmp_path / "end"
    others = [rank for rank in range(4) if rank != victim]
    world.begin(train_until, str(end), count)
    wait_until("three steps", Path(f"{end}.begun").exists)
    world.signal(victim, signal.SIGSTOP)
    wait_until("a warning", lambda: any(warnings_about(world, victim, by) for by in others))
    world.signal(victim, signal.SIGCONT)
    end.touch()
    steps = {outcome.value for outcome in world.finish()}
    assert len(steps) == 1 and None not in steps, [world.stderr(rank) for rank in range(4)]


def test_the_warning_says_that_the_process_is_stopped(make_world, transport):
    world = make_world(timeout_s=LIMIT_S)
    world.signal(2, signal.SIGSTOP)
    world.begin(once)
    wait_until("a warning", lambda: warnings_about(world, 2, by=0))
    world.signal(2, signal.SIGCONT)
    world.finish()
    lines = warnings_about(world, 2, by=0)
    assert len(lines) == 1, "said once per collective"
    waited = re.search(r"all_reduce\(SUM, float32 x 100\) #1 has waited (\d+\.\d) s", lines[0])
    assert waited and float(waited[1]) >= 0.5, lines
    assert f"rank 2 (pid {world.pid(2)} on " in lines[0]
    if transport == "shm":
        assert "its process is stopped by a signal (state T)" in lines[0]


def test_a_rank_stopped_past_the_deadline_is_named(make_world, tmp_path):
    world, end = make_world(timeout_s=DEADLINE_S), tmp_path / "end"
    world.begin(train_until, str(end), 100)
    wait_until("three steps", Path(f"{end}.begun").exists)
    stopped = world.signal(1, signal.SIGSTOP)
    for outcome in world.finish([0, 2, 3]):
        assert "Timeout: " in outcome.error, outcome.error
        assert f"rank 1 (pid {world.pid(1)} on " in outcome.error, outcome.error
        assert outcome.ended - stopped > DEADLINE_S - 0.5


def hook_that_waits() -> tuple[bool, str]:
    """On a rank: whether a handler ends a backward pass whose communication hook waits; what the next pass says."""
    ddp = DistributedDataParallel(torch.nn.Linear(2, 2))
    ddp.register_comm_hook(None, lambda _, bucket: torch.futures.Future())
    loss = ddp(torch.ones(1, 2)).sum()  # a busy machine takes long for it
    is_interrupted = is_ended_by_a_handler(loss.backward, 0.05)
    return is_interrupted, error_of(ddp, torch.ones(1, 2))


def test_signal_handlers_run_while_a_communication_hook_waits(make_world):
    for outcome in make_world(2).attempt(hook_that_waits, within=20):
        is_interrupted, said = outcome.value
        assert is_interrupted
        assert "abandon_backward()" in said


def hook_that_never_ends(bucket_mb: float) -> str:
    """On a rank: what is said of Futures that are never done, of the first bucket or of the only one."""
    layers = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
    ddp = DistributedDataParallel(layers, bucket_cap_mb=bucket_mb)
    ddp.register_comm_hook(None, lambda _, bucket: torch.futures.Future())
    return error_of(ddp(torch.ones(1, 2)).sum().backward)


@pytest.mark.parametrize("bucket_mb", [1e-5, 25])
def test_a_communication_hook_is_waited_for_twice_the_timeout(run_on_fresh_ranks, bucket_mb):
    world = run_on_fresh_ranks(1)
    world.join(timeout_s=0.5)
    [said] = world.run(hook_that_never_ends, bucket_mb)
    assert "is not done after 1 s" in said and "must not wait for later buckets" in said


def interrupted_pass(told: str) -> tuple[bool, str, str]:
    """On rank 0 a handler ends a pass that waits for rank 1. Whether it did, what the next pass says, and the hash of
    two steps after it was abandoned.
    """
    torch.manual_seed(0)
    ddp = DistributedDataParallel(torch.nn.Linear(4, 4))
    is_interrupted, said = False, ""
    if HERE.rank == 0:
        loss = ddp(torch.ones(1, 4)).sum()
        is_interrupted = is_ended_by_a_handler(loss.backward, 0.05)
        said = error_of(ddp, torch.ones(1, 4))
        Path(told).touch()
    else:
        deadline = time.monotonic() + SLACK_S
        while not Path(told).exists() and time.monotonic() < deadline:
            time.sleep(0.001)
        ddp(torch.ones(1, 4)).sum().backward()
    ddp.abandon_backward()
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    for step in range(2):
        optimizer.zero_grad()
        ddp(torch.full((1, 4), 1.0 + HERE.rank + step)).square().sum().backward()
        optimizer.step()
    return is_interrupted, said, parameters_hash(ddp)


def test_a_pass_that_a_handler_ends_is_not_over(make_world, tmp_path):
    """Collectives that are under way use the memory of its buckets, into which the next pass would write."""
    first, second = (outcome.value for outcome in make_world(2).attempt(interrupted_pass, str(tmp_path / "told")))
    assert first[0] and "abandon_backward()" in first[1]
    assert first[2] == second[2]
