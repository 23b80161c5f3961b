"""Sparse gradients: the mean of embeddings' gradients, with ranks that used none."""

from __future__ import annotations

import pytest
import torch
from ranks import BACKENDS, HERE
from rig import reducer_of


def mean_of_rows(backend: str, used_by: list[int]) -> list[list[float]]:
    """On a rank: rank r looks up rows r and 0 of a table, if it is one of `used_by`; the dense mean."""
    table = torch.zeros(5, 2, requires_grad=True)
    weight = torch.zeros(2, requires_grad=True)
    reducer = reducer_of([table, weight], backend, sparse=[True, False], find_unused=True)
    rows = torch.nn.functional.embedding(torch.tensor([HERE.rank, 0]), table, sparse=True)
    loss = (weight * 3.0).sum() + (rows.sum() * 3.0 if HERE.rank in used_by else 0.0)
    reducer.prepare_for_forward()
    reducer.prepare_for_backward([loss])
    loss.backward()
    return table.grad.to_dense().tolist()


@pytest.mark.parametrize("used_by", [[0, 1, 2], [1, 2]])
@pytest.mark.parametrize("backend", BACKENDS)
def test_rows_are_summed_and_divided(trio, backend, used_by):
    expected = torch.zeros(5, 2)
    for rank in used_by:
        expected[rank] += 1
        expected[0] += 1
    assert trio.run(mean_of_rows, backend, used_by) == [expected.tolist()] * 3


def dense_gradient() -> str:
    table = torch.zeros(5, 2, requires_grad=True)
    reducer = reducer_of([table], sparse=[True])
    reducer.prepare_for_forward()
    reducer.prepare_for_backward([])
    try:
        table.sum().backward()
    except RuntimeError as error:
        return str(error)
    return ""


def test_a_dense_gradient_of_a_sparse_layer_is_named(world_of):
    assert "gradient of p0 is dense" in world_of(1).run(dense_gradient)[0]
