"""DTensor: distribute, redistribute between all placements, and products of sharded matrices."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from groups import default_group
from ranks import HERE

tensors = pytest.importorskip("torch.distributed.tensor")

ROWS, COLUMNS = 6, 10


def matrix(seed: int, rows: int, columns: int) -> torch.Tensor:
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed))


def placements(backend: str) -> list[list[float]]:
    """On a rank: the local part after each step from placement to placement."""
    with default_group(backend):
        mesh = dist.init_device_mesh("cpu", (HERE.size,))
        shard, replicate = tensors.Shard, tensors.Replicate()
        current = tensors.distribute_tensor(matrix(0, ROWS, COLUMNS), mesh, [shard(0)])
        parts = [current.to_local().flatten().tolist()]
        for placement in (replicate, shard(1), shard(0), shard(1), replicate):
            current = current.redistribute(mesh, [placement])
            parts.append(current.to_local().flatten().tolist())
        return parts


def product(backend: str) -> list[list[float]]:
    """On a rank: a product whose inner dimension is sharded, summed to all and summed to shards."""
    with default_group(backend):
        mesh = dist.init_device_mesh("cpu", (HERE.size,))
        left = tensors.distribute_tensor(matrix(1, ROWS, COLUMNS), mesh, [tensors.Shard(1)])
        right = tensors.distribute_tensor(matrix(2, COLUMNS, ROWS), mesh, [tensors.Shard(0)])
        partial = left @ right
        whole = partial.redistribute(mesh, [tensors.Replicate()]).to_local()
        sharded = partial.redistribute(mesh, [tensors.Shard(0)]).full_tensor()
        return [whole.flatten().tolist(), sharded.flatten().tolist()]


def test_from_placement_to_placement(assert_same):
    for parts in assert_same(2, placements):
        assert parts[1] == parts[-1] == matrix(0, ROWS, COLUMNS).flatten().tolist()


def test_a_product_of_shards(assert_same):
    expected = matrix(1, ROWS, COLUMNS) @ matrix(2, COLUMNS, ROWS)
    for whole, sharded in assert_same(2, product):
        assert whole == sharded
        torch.testing.assert_close(torch.tensor(whole).view(ROWS, ROWS), expected)
