"""Buckets by order of arrival: once, with gradients moved along; resets and other groups."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from ranks import HERE
from rig import backward, folded, gradients, reducer_of, same_bits

SHAPES = [[10]] * 6


def in_order(order: list[int], as_view: bool) -> tuple[list[bool], list[list[int]], bool]:
    """On a rank: whether each forward pass rebuilt; the layout; whether views were carried over with their values."""
    parameters = [torch.zeros(shape, requires_grad=True) for shape in SHAPES]
    reducer = reducer_of(parameters, bucket_limits=[80], gradient_as_bucket_view=as_view)
    rebuilt, kept = [], True
    for _ in range(3):
        before = [None if p.grad is None else p.grad.clone() for p in parameters]
        reducer.prepare_for_forward()
        rebuilt.append(reducer.rebuild_buckets())
        kept = kept and all(b is None or same_bits(p.grad, b) for p, b in zip(parameters, before, strict=True))
        reducer.prepare_for_backward([])
        for index in order:
            parameters[index].grad = None
            (parameters[index] * 2.0).sum().backward()
        kept = kept and all(bool((p.grad == 2).all()) for p in parameters)
    return rebuilt, [bucket["indices"] for bucket in reducer.buckets()], kept


@pytest.mark.parametrize("as_view", [False, True])
@pytest.mark.parametrize("order", [[0, 1, 2, 3, 4, 5], [5, 4, 3, 2, 1, 0]])
def test_buckets_follow_the_first_arrival_once(trio, order, as_view):
    buckets = [order[0:2], order[2:4], order[4:6]]
    assert trio.run(in_order, order, as_view) == [([False, True, False], buckets, True)] * 3


def never_with_unused() -> list[bool]:
    parameters = [torch.zeros(4, requires_grad=True) for _ in range(2)]
    reducer = reducer_of(parameters, find_unused=True)
    rebuilt = []
    for _ in range(3):
        reducer.prepare_for_forward()
        rebuilt.append(reducer.rebuild_buckets())
        loss = (parameters[0] * 1.0).sum()
        reducer.prepare_for_backward([loss])
        loss.backward()
    return rebuilt


def test_the_search_for_unused_parameters_keeps_the_layout(world_of):
    assert world_of(2).run(never_with_unused) == [[False] * 3] * 2


def another_group() -> bool:
    """On a rank: a failed step is forgotten; two of three ranks go on in a group of their own."""
    parameters = [torch.zeros(shape, requires_grad=True) for shape in SHAPES]
    reducer = reducer_of(parameters)
    backward(reducer, parameters, gradients(HERE.rank, SHAPES))
    reducer.prepare_for_forward()
    reducer.prepare_for_backward([])
    (parameters[0] * 1.0).sum().backward()  # not finished
    pair = dist.new_group([0, 2])
    if HERE.rank == 1:
        return True
    reducer.reset()
    reducer.set_group(pair)
    inputs = [gradients(rank, SHAPES, seed=5) for rank in (0, 2)]
    for _ in range(2):
        for parameter in parameters:
            parameter.grad = None
        backward(reducer, parameters, inputs[HERE.rank // 2])
    right = all(same_bits(p.grad, folded([g[i] for g in inputs], 2)) for i, p in enumerate(parameters))
    # torch hashes how many groups a rank is in into the names of some: it has to be the same on all for later tests.
    dist.destroy_process_group(pair)
    return right


def test_a_reducer_moves_to_another_group(trio):
    assert trio.run(another_group) == [True] * 3
