"""Collectives of tensors that do not fit into half a window, of ranks that share one GPU: in pieces, the same bits."""

from __future__ import annotations

import one_gpu as gpu
import pytest
from oracle import COMMON

gpu.require()
from test_collectives import in_lists, moved, reduced

SMALL = {"window_bytes": 1 << 20}  # the least
COUNT = 300_001


@pytest.mark.parametrize("dtype", COMMON, ids=gpu.name_of)
@pytest.mark.parametrize("world", [2, 4])
def test_reductions_in_pieces(world_of, world, dtype):
    assert world_of(world, **SMALL).run(reduced, gpu.DEVICE, dtype, [COUNT]) == [[]] * world


@pytest.mark.parametrize("dtype", COMMON, ids=gpu.name_of)
@pytest.mark.parametrize("world", [2, 4])
def test_moves_in_pieces(world_of, world, dtype):
    assert world_of(world, **SMALL).run(moved, gpu.DEVICE, dtype, COUNT) == [[]] * world


@pytest.mark.parametrize("world", [2, 4])
def test_lists_in_pieces(world_of, world):
    assert world_of(world, **SMALL).run(in_lists, gpu.DEVICE, 1 << 18) == [[]] * world
