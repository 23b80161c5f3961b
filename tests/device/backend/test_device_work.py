"""A Work over a device: what wait(), its Future and its callbacks' streams do, and how a failure ends it."""

from __future__ import annotations

import math
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from ranks import HERE, tell, values_of
from stand_in import TYPE, backend_of, error_of, here

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
    assert slow.startswith("Timeout: ") and ("the device of this rank has not come" in slow or "rank 0" in slow)
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
