"""What both ways over a device have in common: a call that no graph can replay is refused, and the group goes on."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from native import arrive
from stand_in import error_of


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
