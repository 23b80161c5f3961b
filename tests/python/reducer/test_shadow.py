"""A joined rank mirrors the collectives of the others' backward pass and changes none of their bits."""

from __future__ import annotations

import pytest
import torch
from ranks import BACKENDS, HERE
from rig import folded, gradients, reducer_of, same_bits

SHAPES = [[50], [3], [20]]


def with_one_joined(backend: str, overlap: bool, find_unused: bool, divisor: int) -> bool:
    """On a rank: rank 2 has joined; the others' mean is that of ranks 0 and 1 over `divisor`."""
    parameters = [torch.zeros(shape, requires_grad=True) for shape in SHAPES]
    reducer = reducer_of(parameters, backend, bucket_limits=[100], overlap=overlap, find_unused=find_unused)
    inputs = [gradients(rank, SHAPES) for rank in (0, 1)]
    if HERE.rank == 2:
        reducer.shadow_backward(float(divisor))
        reducer.assume_arrival()
        return reducer.rebuild_buckets() is not find_unused
    reducer.set_divisor(float(divisor))
    used = [g if i != 1 or not find_unused else None for i, g in enumerate(inputs[HERE.rank])]
    reducer.prepare_for_forward()
    loss = sum((p * g).sum() for p, g in zip(parameters, used, strict=True) if g is not None)
    reducer.prepare_for_backward([loss])
    loss.backward()
    reducer.rebuild_buckets()
    return all(
        p.grad is None if find_unused and i == 1 else same_bits(p.grad, folded([g[i] for g in inputs], divisor))
        for i, p in enumerate(parameters)
    )


@pytest.mark.parametrize("find_unused", [False, True])
@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("backend", BACKENDS)
def test_the_others_have_the_mean_of_the_others(trio, backend, overlap, find_unused):
    assert trio.run(with_one_joined, backend, overlap, find_unused, 2) == [True] * 3
    assert trio.run(with_one_joined, backend, overlap, find_unused, 3) == [True] * 3
