"""Sums of squares of blocks: right, of every type, and the same of a piece as of the whole."""

from __future__ import annotations

import pytest
import torch
from ringdp import _native

_C = _native.load()
BLOCK = _C.shard_block()
DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.complex64]


@pytest.mark.parametrize("count", [0, 1, BLOCK, 3 * BLOCK + 7])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_blocks_are_their_squares(dtype, count):
    drawn = dtype if dtype.is_complex else torch.float32
    values = torch.randn(count, dtype=drawn, generator=torch.Generator().manual_seed(2)).to(dtype)
    sums = _C.block_squares(values)
    assert sums.dtype == torch.float64 and len(sums) == -(-count // BLOCK)
    for block, sum_ in zip(values.split(BLOCK), sums, strict=False):
        wide = block.to(torch.complex128 if dtype.is_complex else torch.float64)
        assert float(sum_) == pytest.approx(float((wide.abs() ** 2).sum()), rel=1e-12)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_piece_has_the_sums_of_the_whole(dtype):
    drawn = dtype if dtype.is_complex else torch.float32
    values = torch.randn(5 * BLOCK + 3, dtype=drawn, generator=torch.Generator().manual_seed(3)).to(dtype)
    whole = _C.block_squares(values)
    parts = [_C.block_squares(values[: 2 * BLOCK]), _C.block_squares(values[2 * BLOCK :])]
    assert torch.equal(torch.cat(parts), whole)


def test_pieces_are_flat():
    with pytest.raises(RuntimeError, match="must be flat"):
        _C.block_squares(torch.ones(2, 2))
