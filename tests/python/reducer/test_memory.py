"""Where buckets lie: in shared memory of a group that has some, else in ordinary memory."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from ranks import BACKENDS, HERE
from rig import backward, folded, gradients, reducer_of, same_bits


def places(backend: str) -> tuple[bool, bool]:
    """On a rank: whether a bucket is said to be shared; whether a mean through it is right."""
    parameter = torch.zeros(5000, requires_grad=True)
    reducer = reducer_of([parameter], backend)
    by_rank = [gradients(rank, [[5000]])[0] for rank in range(HERE.size)]
    backward(reducer, [parameter], [by_rank[HERE.rank]])
    return reducer.buckets()[0]["shared"], same_bits(parameter.grad, folded(by_rank, HERE.size))


def test_a_group_with_shared_memory_lends_it(trio):
    assert trio.run(places, "ringdp") == [(True, True)] * 3


def test_others_have_ordinary_memory(world_of, trio):
    assert trio.run(places, BACKENDS[1]) == [(False, True)] * 3
    assert world_of(3, transport="tcp").run(places, "ringdp") == [(False, True)] * 3
    assert world_of(1).run(places, "ringdp") == [(False, True)]


def traffic_of_a_large_gradient(accumulated: bool) -> float:
    """On a rank: bytes read and written by the collective, per byte of a gradient that has a bucket for itself."""
    parameter = torch.zeros(200_000, requires_grad=True)
    reducer = reducer_of([parameter], bucket_limits=[0])
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    if accumulated:  # before the reducer knows of a step: ordinary memory
        (parameter * 1.0).sum().backward()
    before = backend.counters()
    backward(reducer, [parameter], [torch.ones(200_000)])
    after = backend.counters()
    return sum(after[key] - before[key] for key in ("memory_bytes_read", "memory_bytes_written")) / 800_000


def test_large_gradients_are_made_in_shared_memory_and_reduced_there(world_of):
    """One pass moves 2 bytes per byte; through slots it is more."""
    pair = world_of(2)
    assert all(moved == pytest.approx(2, rel=0.01) for moved in pair.run(traffic_of_a_large_gradient, False))
    assert all(moved > 2.5 for moved in pair.run(traffic_of_a_large_gradient, True))


def tensors_outside() -> tuple[float, float]:
    """On a rank: a tensor of the gradient's size made after the step is ordinary; a full heap is no error."""
    parameter = torch.zeros(200_000, requires_grad=True)
    reducer = reducer_of([parameter], bucket_limits=[0])
    backward(reducer, [parameter], [torch.ones(200_000)])
    other = torch.ones(200_000)
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    before = backend.counters()["memory_bytes_read"]
    dist.all_reduce(other)
    return float(parameter.grad[0]), (backend.counters()["memory_bytes_read"] - before) / 800_000


def test_the_scope_ends_with_the_step_and_a_full_heap_is_no_error(world_of):
    assert all(grad == 1 and read > 1.4 for grad, read in world_of(2).run(tensors_outside))
    assert all(grad == 1 for grad, _ in world_of(2, heap_bytes=1 << 19).run(tensors_outside))
