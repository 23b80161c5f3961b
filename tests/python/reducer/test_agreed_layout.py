"""Gradients arrive in another order on each rank; buckets are laid out as on rank 0."""

from __future__ import annotations

import pytest
import torch
from ranks import BACKENDS, HERE
from rig import folded, gradients, reducer_of, same_bits

COUNT = 5


def layouts(backend: str) -> tuple[list[int], list[list[int]], bool]:
    """On a rank: its own order of arrival; the buckets after the rebuild; whether the mean is still right."""
    parameters = [torch.zeros(10, requires_grad=True) for _ in range(COUNT)]
    reducer = reducer_of(parameters, backend, bucket_limits=[80])
    inputs = [gradients(rank, [[10]] * COUNT) for rank in range(HERE.size)]
    own_order = [(index * 2 + HERE.rank) % COUNT for index in range(COUNT)]
    arrival: list[int] = []
    for _ in range(2):
        for parameter in parameters:
            parameter.grad = None
        reducer.prepare_for_forward()
        reducer.rebuild_buckets()
        reducer.prepare_for_backward([])
        for index in own_order:
            (parameters[index] * inputs[HERE.rank][index]).sum().backward()
        arrival = arrival or reducer.arrival_order()
    right = all(
        same_bits(p.grad, folded([by_rank[index] for by_rank in inputs], HERE.size))
        for index, p in enumerate(parameters)
    )
    return arrival, [bucket["indices"] for bucket in reducer.buckets()], right


@pytest.mark.parametrize("backend", BACKENDS)
def test_rank_zeros_order_is_everybodys(trio, backend):
    outcomes = trio.run(layouts, backend)
    assert len({tuple(arrival) for arrival, _, _ in outcomes}) == 3
    first = outcomes[0][0]
    for _, buckets, right in outcomes:
        assert buckets == [first[0:2], first[2:4], first[4:5]]
        assert right
