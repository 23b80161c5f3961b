"""The reducer as it is made: buckets from the first step on, what it refuses, how it ends."""

from __future__ import annotations

import gc
import weakref

import torch
import torch.distributed as dist
from ranks import HERE
from rig import backward, reducer_of

MIB = 1 << 20


def first_layout() -> tuple[list[list[int]], int]:
    """On a rank: buckets of the first step, and how many collectives it takes."""
    parameters = [torch.zeros(MIB // 8, requires_grad=True) for _ in range(12)]  # half a MiB each
    reducer = reducer_of(parameters, bucket_limits=[MIB, 2 * MIB])
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    before = backend.counters()["collectives"]
    backward(reducer, parameters, [torch.ones(MIB // 8)] * 12)
    collectives = backend.counters()["collectives"] - before
    return [bucket["indices"] for bucket in reducer.buckets()], collectives


def test_buckets_serve_from_the_first_step_in_reverse_order(trio):
    layout = [[11, 10], [9, 8, 7, 6], [5, 4, 3, 2], [1, 0]]
    assert trio.run(first_layout) == [(layout, len(layout))] * 3


def given_layout() -> list[list[int]]:
    """On a rank: buckets of a layout that is given, after a step in another order."""
    parameters = [torch.zeros(4, requires_grad=True) for _ in range(4)]
    reducer = reducer_of(parameters, layout=[[1, 3], [0], [2]], bucket_limits=[1])
    for _ in range(2):
        backward(reducer, parameters, [torch.ones(4)] * 4)
    return reducer.layout()


def test_a_layout_that_is_given_stays(trio):
    assert trio.run(given_layout) == [[[1, 3], [0], [2]]] * 3


def freed() -> bool:
    """On a rank: a reducer leaves no hook and no cycle behind."""
    parameter = torch.zeros(4, requires_grad=True)
    reducer = reducer_of([parameter])
    backward(reducer, [parameter], [torch.ones(4)])
    gone = weakref.ref(reducer)
    del reducer
    gc.collect()
    parameter.grad = None
    (parameter * float(HERE.rank)).sum().backward()
    return gone() is None and parameter.grad.tolist() == [float(HERE.rank)] * 4


def test_nothing_is_left_behind(trio):
    assert trio.run(freed) == [True] * 3


def late_static_graph() -> str:
    parameter = torch.zeros(4, requires_grad=True)
    reducer = reducer_of([parameter])
    backward(reducer, [parameter], [torch.ones(4)])
    try:
        reducer.set_static_graph()
    except RuntimeError as error:
        return str(error)
    return ""


def test_a_graph_cannot_become_static_later(world_of):
    assert "before training loop starts" in world_of(1).run(late_static_graph)[0]
