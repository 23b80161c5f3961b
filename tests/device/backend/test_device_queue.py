"""How collectives on devices end that cannot: named, NaN instead of a number, nothing hangs, the device goes on."""

from __future__ import annotations

import re
import signal
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from native import PATIENCE_S, arrive, is_void
from oracle import FLOAT8
from ranks import HERE, World, values_of
from stand_in import error_of

KEPT: dict[str, Any] = {}  # on a rank: between two calls of a test


def disagreeing(library: str, executor: str, how: str) -> tuple[str, str, bool]:
    """On a rank: rank 1 calls something else; what wait() and a later call say, and what is left in the tensor."""
    gpu, _ = arrive(library, executor)
    group = gpu.new_group()
    dist.all_reduce(gpu.put(torch.ones(4)), group=group)
    odd = HERE.rank == 1
    tensor = gpu.put(torch.ones(2000 if odd and how == "count" else 1000))
    op = dist.ReduceOp.AVG if odd and how == "op" else dist.ReduceOp.SUM
    if odd and how == "host":
        tensor = torch.ones(1000)
    work = dist.all_reduce(tensor, op, group=group, async_op=True)
    error = error_of(lambda: work.wait(timedelta(seconds=PATIENCE_S)))
    return error, error_of(lambda: dist.all_reduce(tensor, group=group)), tensor.is_cpu or is_void(tensor)


def moved_by_ranks_that_disagree(library: str, executor: str, dtype: torch.dtype) -> bool:
    """On a rank: whether nothing but NaN is left where rank 1 has broadcast fewer elements."""
    gpu, _ = arrive(library, executor)
    group = gpu.new_group()
    tensor = gpu.put(torch.ones(500 if HERE.rank == 1 else 1000).to(dtype))
    error_of(lambda: dist.broadcast(tensor, 0, group=group))
    return bool(torch.isnan(tensor.cpu().float()).all())


def waited_for_before_it_failed(library: str, executor: str) -> tuple[str, bool, str, float]:
    """On a rank: wait() has returned long before the ranks are found to disagree; then the device is used again."""
    gpu, _ = arrive(library, executor)
    group = gpu.new_group()
    dist.all_reduce(gpu.put(torch.ones(4)), group=group)
    tensor, seen = gpu.put(torch.ones(1000)), gpu.put(torch.zeros(1000))
    if HERE.rank == 0:
        dist.all_reduce(tensor, group=group, async_op=True).wait()
        seen.copy_(tensor, non_blocking=True)
    dist.barrier()
    later = ""
    if HERE.rank == 1:
        work = dist.broadcast(tensor, 0, group=group, async_op=True)
        later = error_of(lambda: work.wait(timedelta(seconds=PATIENCE_S)))
    gpu.synchronize()
    void = HERE.rank == 1 or is_void(seen)
    other = gpu.new_group()
    again = gpu.put(torch.ones(10))
    dist.all_reduce(again, group=other)
    return later, void, error_of(lambda: dist.all_reduce(tensor, group=group)), float(again.cpu()[0])


def call_without_rank_1s_device(library: str, executor: str, timeout_s: float) -> tuple[Any, torch.Tensor, dist.Work]:
    """On a rank: begins a collective to which rank 1's device does not come."""
    gpu, _ = arrive(library, executor)
    group = gpu.new_group(timeout_s)
    tensor = gpu.put(torch.ones(1000))
    dist.all_reduce(tensor, group=group)
    gpu.synchronize()
    if HERE.rank == 1:
        gpu.hold()
    return gpu, tensor, dist.all_reduce(tensor, group=group, async_op=True)


def hang(library: str, executor: str, timeout_s: float) -> bool:
    """On a rank: such a call, for which nobody waits yet."""
    gpu, tensor, work = call_without_rank_1s_device(library, executor, timeout_s)
    KEPT.update(gpu=gpu, tensor=tensor, work=work)
    dist.barrier()
    return work.wait()


def end() -> tuple[str, bool]:
    """On rank 0, later: what became of it; the stream goes on."""
    error = error_of(lambda: KEPT["work"].wait(timedelta(seconds=PATIENCE_S)))
    KEPT["gpu"].synchronize()
    return error, is_void(KEPT["tensor"])


def behind(library: str, executor: str, timeout_s: float) -> tuple[str, bool]:
    """On a rank: rank 1's device does not come to the collective in time."""
    gpu, tensor, work = call_without_rank_1s_device(library, executor, timeout_s)
    error = error_of(lambda: work.wait(timedelta(seconds=PATIENCE_S)))
    if HERE.rank == 1:
        gpu.go()
    return error, is_void(tensor)


def absent(library: str, executor: str) -> tuple[str, bool]:
    """On a rank: rank 1 does not call at all before the timeout."""
    gpu, _ = arrive(library, executor)
    group = gpu.new_group(timeout_s=1.0)
    tensor = gpu.put(torch.ones(1000))
    dist.all_reduce(tensor, group=group)
    if HERE.rank == 1:
        gpu.synchronize()
        return "", True
    work = dist.all_reduce(tensor, group=group, async_op=True)
    return error_of(lambda: work.wait(timedelta(seconds=PATIENCE_S))), is_void(tensor)


def callers_named(error: str) -> set[int]:
    """The ranks whose calls an error compares."""
    return {int(rank) for rank in re.findall(r"rank (\d+) \([^)]*\) called", error)}


@pytest.mark.parametrize("how", ["count", "op", "host"])
def test_ranks_that_disagree_are_named(native_pair, stand_in, executor, how):
    for error, later, void in native_pair.run(disagreeing, stand_in, executor, how):
        assert "Mismatch: " in error
        assert callers_named(error) == {0, 1}
        assert ") on devices" in error
        assert "Mismatch: " in later
        assert void


@pytest.mark.parametrize("dtype", FLOAT8, ids=str)
def test_moved_floats_of_8_bits_are_nan_too(native_pair, stand_in, executor, dtype):
    assert native_pair.run(moved_by_ranks_that_disagree, stand_in, executor, dtype)[1]


def test_a_result_that_was_waited_for_is_nan_and_the_device_goes_on(native_pair, stand_in, executor):
    outcomes = native_pair.run(waited_for_before_it_failed, stand_in, executor)
    assert "Mismatch: " in outcomes[1][0]
    for _, void, error, again in outcomes:
        assert void
        assert "Mismatch: " in error
        assert again == 2.0


def check_end_by_death(world: World) -> None:
    """Of a world that hangs: rank 0 is told who died, and its device goes on."""
    killed = world.kill(1)
    outcome = world.attempt(end, ranks=[0])[0]
    error, void = values_of([outcome])[0]
    assert error.startswith("PeerLost: rank 1 (pid ")
    assert void
    assert outcome.ended - killed < PATIENCE_S


def test_a_rank_that_dies_is_named_and_lets_the_device_go(run_on_fresh_ranks, stand_in, executor):
    world = run_on_fresh_ranks(2, window_bytes=1 << 20)
    world.join()
    assert world.run(hang, stand_in, executor, 60.0) == [True, True]
    check_end_by_death(world)


def test_a_device_that_does_not_come_is_a_timeout(native_pair, stand_in, executor):
    outcomes = native_pair.run(behind, stand_in, executor, 1.0)
    for error, void in outcomes:
        assert "Timeout: " in error and "all_reduce(SUM, float32 x 1000) on devices #" in error
        assert void
    assert "rank 1" in outcomes[0][0]


def test_who_does_not_call_is_a_timeout(native_pair, stand_in, executor):
    error, void = native_pair.run(absent, stand_in, executor)[0]
    assert "Timeout: " in error and "all_reduce(SUM, float32 x 1000) on devices #" in error
    assert "rank 1 (pid" in error
    assert void


@pytest.mark.parametrize("executor", [pytest.param("SPIN", marks=pytest.mark.long), "STREAM"])
def test_a_stopped_rank_is_reported_late_and_then_a_timeout(run_on_fresh_ranks, stand_in, executor):
    world = run_on_fresh_ranks(2, window_bytes=1 << 20)
    world.join()
    assert world.run(hang, stand_in, executor, 3.0) == [True, True]
    world.signal(1, signal.SIGSTOP)
    error, void = values_of(world.attempt(end, ranks=[0]))[0]
    world.signal(1, signal.SIGCONT)
    assert "Timeout: " in error and "rank 1 (pid" in error and "stopped" in error
    assert void
    assert "waits on the device: rank 1 (pid" in world.stderr(0)
