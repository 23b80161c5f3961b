"""ringdp/selftest/meaning.py: the table of what can be computed in which type."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from ringdp.selftest import meaning


@pytest.mark.parametrize("name", meaning.COLUMNS)
def test_every_column_is_a_dtype_of_torch(name):
    assert isinstance(meaning.dtype_named(name), torch.dtype)


@pytest.mark.parametrize(
    ("dtype", "refused"),
    [
        (torch.float32, {"BAND", "BOR", "BXOR"}),
        (torch.bfloat16, {"BAND", "BOR", "BXOR"}),
        (torch.uint16, {"PREMUL_SUM"}),
        (torch.bool, {"AVG", "PREMUL_SUM"}),
        (torch.complex64, {"MIN", "MAX", "PRODUCT", "BAND", "BOR", "BXOR"}),
        (torch.float8_e5m2, set(meaning.REDUCE_OPS)),
    ],
)
def test_what_has_no_meaning(dtype, refused):
    assert {op for op in meaning.REDUCE_OPS if not meaning.has_meaning(dtype, op)} == refused


def test_every_reduce_op_is_torch_s():
    for rank in range(3):
        for op in meaning.REDUCE_OPS[:-1]:
            assert meaning.reduce_op(op, rank) == getattr(dist.ReduceOp, op)
        assert meaning.reduce_op("PREMUL_SUM", rank) == dist.ReduceOp.PREMUL_SUM


def test_ranks_differ_in_their_factor():
    assert meaning.factor_of(0) != meaning.factor_of(1)
