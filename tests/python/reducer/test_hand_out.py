"""Results in their places: copies or views, and what nobody used keeps its .grad."""

from __future__ import annotations

import pytest
import torch
from ranks import HERE
from rig import backward, folded, gradients, reducer_of, same_bits

SHAPES = [[4, 3], [5], [6]]


def handed(as_views: bool, preset: bool) -> tuple[list[bool], bool, bool]:
    """On a rank: gradients that are the mean; whether the .grad of a parameter that none uses stays; shared memory."""
    parameters = [torch.nn.Parameter(torch.zeros(shape)) for shape in SHAPES]
    reducer = reducer_of(parameters, find_unused=True, gradient_as_bucket_view=as_views)
    by_rank = [gradients(rank, SHAPES) for rank in range(HERE.size)]
    own = by_rank[HERE.rank]
    if preset and not as_views:
        parameters[2].grad = torch.full([6], 7.0)
    backward(reducer, parameters, [own[0], own[1], None])
    means = [folded(of_all, HERE.size) for of_all in zip(*by_rank, strict=True)]
    right = [same_bits(parameters[i].grad, means[i]) for i in range(2)]
    kept = parameters[2].grad is None if not preset or as_views else bool((parameters[2].grad == 7).all())
    together = parameters[0].grad.untyped_storage().data_ptr() == parameters[1].grad.untyped_storage().data_ptr()
    return right, kept, together


@pytest.mark.parametrize("preset", [False, True])
@pytest.mark.parametrize("as_views", [False, True])
def test_means_arrive_and_unused_gradients_stay(trio, as_views, preset):
    assert trio.run(handed, as_views, preset) == [([True, True], True, as_views)] * 3
