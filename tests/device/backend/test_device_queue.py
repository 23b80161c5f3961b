"""A Work over a device: what wait(), its Future and callbacks do, and how calls end that cannot."""

from __future__ import annotations

import math
import re
import signal
import time
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from native import PATIENCE_S, arrive, is_void
from oracle import FLOAT8
from ranks import HERE, World, tell, values_of
from stand_in import TYPE, backend_of, error_of, here

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


def is_lost() -> bool:
    """On rank 0, after that: whether its device can no longer be used."""
    return KEPT["gpu"].is_lost()


def behind(library: str, executor: str, timeout_s: float) -> tuple[str, bool]:
    """On a rank: rank 1's device does not come to the collective in time."""
    gpu, tensor, work = call_without_rank_1s_device(library, executor, timeout_s)
    error = error_of(lambda: work.wait(timedelta(seconds=PATIENCE_S)))
    if HERE.rank == 1:
        gpu.go()
    return error, is_void(tensor)


def behind_long_work(library: str, executor: str) -> tuple[str, float]:
    """On a rank: every device has other work first, for longer than a collective may take."""
    gpu, _ = arrive(library, executor)
    group = gpu.new_group(timeout_s=1.0)
    tensor = gpu.put(torch.ones(1000))
    dist.all_reduce(tensor, group=group)
    gpu.synchronize()
    gpu.hold()
    works = [dist.all_reduce(tensor, group=group, async_op=True) for _ in range(2)]
    time.sleep(2.5)  # with SPIN kernels have a second to tell whom they waited for
    dist.barrier()
    gpu.go()
    error = error_of(lambda: [work.wait() for work in works])
    return error, float(tensor.cpu()[0])


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
    assert values_of(world.attempt(is_lost, ranks=[0])) == [False], (
        "its kernels have touched memory of the process that was killed"
    )
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


def test_the_deadline_counts_from_the_turn_of_a_call(native_pair, stand_in, executor):
    assert native_pair.run(behind_long_work, stand_in, executor) == [("", 8.0)] * 2


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


# A Work over a device: what wait(), its Future and its callbacks' streams do, and how a failure ends it.

LIMIT_S = 20.0


def life(library: str) -> tuple[list[bool], str, float]:
    """On a rank: what a Work says while rank 0's stream is held, and after."""
    gpu = here(library)
    tensor = gpu.put(torch.ones(1000))
    if HERE.rank == 0:
        gpu.hold()
    work = dist.all_reduce(tensor, group=gpu.group, async_op=True)
    early = [work.wait(), not work.is_completed(), not work.is_success(), work.exception() is None]
    late = error_of(lambda: work.wait(timedelta(milliseconds=20)))
    dist.barrier()
    if HERE.rank == 0:
        gpu.go()
    done = [work.wait(timedelta(seconds=LIMIT_S)), work.is_completed(), work.is_success(), work.exception() is None]
    return [*early, *done, work.result()[0].data_ptr() == tensor.data_ptr()], late, float(tensor.cpu()[0])


def futures(library: str) -> tuple[bool, bool, list[float]]:
    """On a rank: a Future is complete at once; its callback's work comes behind the sum, on a stream of its own."""
    gpu = here(library)
    tensor, seen, after = (gpu.put(torch.full((1000,), value)) for value in (5.0, 0.0, 0.0))
    if HERE.rank == 0:
        gpu.hold()
    future = dist.all_reduce(tensor, group=gpu.group, async_op=True).get_future()
    streams = []

    def keep(done: torch.futures.Future) -> torch.Tensor:
        streams.append(gpu.current_stream())
        return seen.copy_(done.value()[0], non_blocking=True)

    chained = future.then(keep)
    complete = future.done() and chained.done()
    after.copy_(chained.wait(), non_blocking=True)  # the caller's stream waits for the callback's
    dist.barrier()
    if HERE.rank == 0:
        gpu.go()
    return complete, streams[0] not in (0, gpu.current_stream()), [float(after.cpu()[0]), float(seen.cpu()[0])]


def batches(library: str) -> list[float]:
    """On a rank: a coalesced call's Future comes behind all its parts."""
    gpu = here(library)
    wholes = [gpu.put(torch.zeros(4 * HERE.size)) for _ in range(2)]
    seen = [torch.empty_like(whole) for whole in wholes]
    if HERE.rank == 0:
        gpu.hold()
    parts = [gpu.put(torch.full((4,), 3.0)) if HERE.rank else torch.empty(4, device=TYPE).fill_(3.0) for _ in wholes]
    future = gpu.group.allgather_into_tensor_coalesced(wholes, parts).get_future()
    future.then(lambda done: [a.copy_(b, non_blocking=True) for a, b in zip(seen, done.value(), strict=True)]).wait()
    dist.barrier()
    if HERE.rank == 0:
        gpu.go()
    return [float(tensor.cpu()[-1]) for tensor in seen]


def barriers(library: str) -> tuple[bool, bool]:
    """On a rank: a barrier for the device blocks the host until what is queued has run."""
    gpu = here(library)
    options = dist.BarrierOptions()
    options.device = torch.device(TYPE, 0)
    gpu.hold()
    work = backend_of(gpu.group).barrier(options)
    dist.barrier()
    early = work.is_completed()
    gpu.go()
    work.wait()
    return early, work.is_completed()


def from_any_source(library: str) -> tuple[int, float]:
    """On a rank: who sent is known when recv() returns."""
    gpu = here(library)
    tensor = gpu.put(torch.full((4,), float(HERE.rank)))
    source = -1
    if HERE.rank == 0:
        source = dist.recv(tensor, group=gpu.group)
    else:
        dist.send(tensor, 0, group=gpu.group)
    dist.barrier()
    return source, float(tensor.cpu()[0])


def bereaved(library: str) -> tuple[bool, str, str, bool, list[int]]:
    """On a rank whose peer dies: nothing blocks, the stream is let go, the error is in the Work and in later calls."""
    gpu = here(library)
    tensor, whole = gpu.put(torch.ones(1000)), gpu.put(torch.ones(4, dtype=torch.int64))
    work = dist.all_reduce(tensor, group=gpu.group, async_op=True)
    dist.all_reduce(whole, group=gpu.group, async_op=True)
    tell(f"called {HERE.rank}")
    waited = work.wait()
    gpu.synchronize()
    error = error_of(lambda: work.wait(timedelta(seconds=LIMIT_S)))
    later = error_of(lambda: dist.all_reduce(tensor, group=gpu.group))
    return (
        waited,
        error,
        later,
        math.isnan(float(tensor.cpu()[0])),
        [bool(work.is_completed()), bool(work.is_success())],
    )


def never_there(library: str) -> str:
    """On a rank: rank 0's stream does not come to the collective before the group's timeout."""
    gpu = here(library)
    group = gpu.new_group(timeout_s=1.0)
    tensor = gpu.put(torch.ones(4))
    if HERE.rank == 0:
        gpu.hold()
    work = dist.all_reduce(tensor, group=group, async_op=True)
    error = error_of(lambda: work.wait(timedelta(seconds=LIMIT_S)))
    if HERE.rank == 0:
        gpu.go()
    gpu.synchronize()
    return error


def test_a_work_from_call_to_end(pair, stand_in):
    for said, late, total in pair.run(life, stand_in):
        assert said == [True] * 9
        assert late.startswith("Timeout: wait(timeout) gave up after 20 ms")
        assert total == 2.0


def test_callbacks_are_ordered_behind_the_result(pair, stand_in):
    assert pair.run(futures, stand_in) == [(True, True, [10.0, 10.0])] * 2


def test_the_future_of_several_is_ordered_behind_all(pair, stand_in):
    assert pair.run(batches, stand_in) == [[3.0, 3.0]] * 2


def test_a_barrier_blocks_the_host(pair, stand_in):
    assert pair.run(barriers, stand_in) == [(False, True)] * 2


def test_a_receive_from_any_source_says_whose(pair, stand_in):
    assert pair.run(from_any_source, stand_in) == [(1, 1.0), (-1, 1.0)]


def test_a_device_that_does_not_come_is_named(pair, stand_in):
    slow, other = pair.run(never_there, stand_in)
    assert slow.startswith("Timeout: ") and (
        "the device of this rank has not finished the work" in slow or "rank 0" in slow
    )
    assert "Timeout: " in other and "rank 0" in other


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_a_peer_that_dies_lets_the_streams_go(run_on_fresh_ranks, stand_in, transport):
    world = run_on_fresh_ranks(3, transport=transport, window_bytes=0)
    world.join()
    world.run(ready, stand_in)
    world.begin(bereaved, stand_in, ranks=[0, 1])
    world.store.wait(["called 0", "called 1"])
    killed = world.kill(2)
    outcomes = world.finish([0, 1], within=LIMIT_S)
    for waited, error, later, poisoned, state in values_of(outcomes):
        assert waited and poisoned and state == [True, False]
        for text in (error, later):
            assert text.startswith("PeerLost: ") and "rank 2 (pid" in text
    assert max(outcome.ended for outcome in outcomes) - killed < LIMIT_S


def ready(library: str) -> None:
    """On a rank: has the device."""
    here(library)
