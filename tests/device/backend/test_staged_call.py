"""A call is ordered by streams on both sides and the host waits for nothing; what no graph can replay is refused."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from native import arrive
from ranks import HERE
from stand_in import error_of, here


def behind_slow_work(library: str) -> tuple[bool, list[float]]:
    """On a rank: the input is written by a job that is still held while the collective is called and waited for."""
    gpu = here(library)
    tensor = gpu.put(torch.zeros(1000))
    gpu.hold()
    tensor.fill_(HERE.rank + 1)
    work = dist.all_reduce(tensor, group=gpu.group, async_op=True)
    work.wait()
    early = work.is_completed()
    dist.barrier()  # nobody's stream has moved
    gpu.go()
    return early, tensor.cpu()[[0, -1]].tolist()


def before_slow_peer(library: str) -> tuple[bool, float]:
    """On a rank: what is queued after wait() sees the sum, though rank 0 gives its part only once that is queued."""
    gpu = here(library)
    tensor, seen = gpu.put(torch.full((1000,), 7.0)), gpu.put(torch.zeros(1000))
    if HERE.rank == 0:
        gpu.hold()
    dist.all_reduce(tensor, group=gpu.group, async_op=True).wait()
    seen.copy_(tensor, non_blocking=True)
    waits = not gpu.is_idle()
    dist.barrier()
    if HERE.rank == 0:
        gpu.go()
    return waits, float(seen.cpu()[0])


def in_order_with_the_cpu(library: str) -> list[float]:
    """On a rank: collectives of one group keep the order of the calls, wherever their tensors lie."""
    gpu = here(library)
    sums = []
    for step in range(5):
        device, host = gpu.put(torch.full((10,), float(step))), torch.full((10,), 100.0 + step)
        if HERE.rank == step % HERE.size:
            gpu.hold()
        works = [dist.all_reduce(tensor, group=gpu.group, async_op=True) for tensor in (device, host)]
        if HERE.rank == step % HERE.size:
            gpu.go()
        works[1].wait()
        works[0].wait()
        sums += [float(device.cpu()[0]), float(host[0])]
    return sums


def test_inputs_are_those_of_the_callers_stream(pair, stand_in):
    assert pair.run(behind_slow_work, stand_in) == [(False, [3.0, 3.0])] * 2


def test_the_callers_stream_goes_on_behind_the_results(pair, stand_in):
    assert pair.run(before_slow_peer, stand_in) == [(True, 14.0)] * 2


def test_a_group_keeps_the_order_of_calls(pair, stand_in):
    wanted = [2.0 * value for step in range(5) for value in (step, 100 + step)]
    assert pair.run(in_order_with_the_cpu, stand_in) == [wanted] * 2


def captured(library: str) -> tuple[str, float]:
    """On a rank: refused while the stream is being captured, before anything moves."""
    gpu, _ = arrive(library, "STREAM")
    group = gpu.new_group()
    tensor = gpu.put(torch.ones(4))
    dist.all_reduce(tensor, group=group)
    gpu.synchronize()
    with gpu.capturing():
        error = error_of(lambda: dist.all_reduce(tensor, group=group))
    dist.all_reduce(tensor, group=group)
    return error, float(tensor.cpu()[0])


def captured_first(library: str) -> tuple[str, float]:
    """On a rank: a group's first call is made while its stream is captured: the capture goes on, the group is good."""
    gpu, _ = arrive(library, "STREAM")
    group = gpu.new_group()
    tensor, other, twos = gpu.put(torch.ones(4)), gpu.put(torch.ones(4)), gpu.put(torch.full((4,), 2.0))
    gpu.synchronize()
    with gpu.capturing() as graph:
        error = error_of(lambda: dist.all_reduce(tensor, group=group))
        other.copy_(twos, non_blocking=True)
    graph.replay()
    dist.all_reduce(tensor, group=group)
    return error, float(tensor.cpu()[0] + other.cpu()[0])


@pytest.mark.parametrize("window_bytes", [0, 1 << 20])
def test_a_first_call_that_is_captured_is_refused_before_it_takes_memory(world_of, stand_in, window_bytes):
    for error, total in world_of(2, window_bytes=window_bytes).run(captured_first, stand_in):
        assert "is being captured" in error
        assert total == 4.0


@pytest.mark.parametrize("window_bytes", [0, 1 << 20])
def test_a_stream_that_is_captured_is_refused(world_of, stand_in, window_bytes):
    for error, total in world_of(2, window_bytes=window_bytes).run(captured, stand_in):
        assert error.startswith("InvalidArgument: the current stream of privateuseone:0 is being captured")
        assert "call it outside the capture" in error
        assert total == 4.0
