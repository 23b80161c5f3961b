"""What a call must give: meaning, inputs, serial references and the comparison."""

from __future__ import annotations

import oracle as backends
import pytest
import torch
import torch.distributed as dist
from ringdp.selftest.oracle import (
    COLUMNS,
    REDUCE_OPS,
    difference,
    dtype_named,
    factor_of,
    fold,
    has_meaning,
    reduce_op,
    values,
)


@pytest.mark.parametrize("name", COLUMNS)
def test_every_column_is_a_dtype_of_torch(name):
    assert isinstance(dtype_named(name), torch.dtype)


@pytest.mark.parametrize(
    ("dtype", "refused"),
    [
        (torch.float32, {"BAND", "BOR", "BXOR"}),
        (torch.bfloat16, {"BAND", "BOR", "BXOR"}),
        (torch.uint16, {"PREMUL_SUM"}),
        (torch.bool, {"AVG", "PREMUL_SUM"}),
        (torch.complex64, {"MIN", "MAX", "PRODUCT", "BAND", "BOR", "BXOR"}),
        (torch.float8_e5m2, set(REDUCE_OPS)),
    ],
)
def test_what_has_no_meaning(dtype, refused):
    assert {op for op in REDUCE_OPS if not has_meaning(dtype, op)} == refused


def test_every_reduce_op_is_torch_s():
    for rank in range(3):
        for op in REDUCE_OPS[:-1]:
            assert reduce_op(op, rank) == getattr(dist.ReduceOp, op)
        assert reduce_op("PREMUL_SUM", rank) == dist.ReduceOp.PREMUL_SUM


def test_ranks_differ_in_their_factor():
    assert factor_of(0) != factor_of(1)


COUNT = 1003


@pytest.mark.parametrize("name", COLUMNS)
def test_repeatable_and_different_by_rank_and_label(name):
    dtype = dtype_named(name)
    first = values("a", 0, COUNT, dtype).clone()
    values.cache_clear()
    assert first.dtype == dtype and first.shape == (COUNT,)
    assert difference(values("a", 0, COUNT, dtype), first) == ""
    assert difference(values("a", 1, COUNT, dtype), first)
    assert difference(values("b", 0, COUNT, dtype), first)
    assert values("a", 0, 0, dtype).numel() == 0


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_the_order_of_a_sum_counts(dtype):
    a, b, c = (values("order", rank, COUNT, dtype) for rank in range(3))
    assert difference((a + b) + c, a + (b + c))


@pytest.mark.parametrize("dtype", [torch.int8, torch.int64])
def test_integers_use_their_whole_range(dtype):
    given = values("range", 0, COUNT, dtype)
    assert given.min() < torch.iinfo(dtype).min // 2 and given.max() > torch.iinfo(dtype).max // 2


RANKS, COUNT_ORACLE = 3, 200


def inputs_of(dtype: torch.dtype) -> list[torch.Tensor]:
    return [values("oracle", rank, COUNT_ORACLE, dtype) for rank in range(RANKS)]


@pytest.mark.parametrize("dtype", backends.NUMBERS, ids=str)
def test_the_backends_oracle_has_the_same_bits(dtype):
    ops = {op for op in REDUCE_OPS if has_meaning(dtype, op)} - {"PREMUL_SUM"}
    assert ops == set(backends.ops_of(dtype))
    inputs = inputs_of(dtype)
    assert [op for op in ops if not backends.same_bits(fold(inputs, op), backends.fold(inputs, op))] == []


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_16_bit_floats_are_folded_wide(dtype):
    inputs = inputs_of(dtype)
    assert not torch.equal(fold(inputs, "SUM"), (inputs[0] + inputs[1]) + inputs[2])


def test_premul_sum_multiplies_each_rank_s_own():
    inputs = inputs_of(torch.float32)
    scaled = [tensor * factor_of(rank) for rank, tensor in enumerate(inputs)]
    assert torch.equal(fold(inputs, "PREMUL_SUM"), fold(scaled, "SUM"))


@pytest.mark.parametrize("name", COLUMNS)
def test_equal_bits_are_equal_and_one_other_element_is_found(name):
    tensor = values("compare", 0, 9, dtype_named(name))
    other = tensor.clone()
    assert difference(other, tensor) == ""
    other.view(torch.uint8)[5 * tensor.itemsize] ^= 1
    assert difference(other, tensor).startswith("element 5 of 9: expected ")
    assert difference(tensor[:0], tensor[:0]) == ""


def test_zeros_of_different_sign_differ_and_equal_nans_do_not():
    zeros = torch.tensor([0.0, -0.0])
    assert difference(zeros, zeros.abs()) == "element 1 of 2: expected 0.0, got -0.0 (1 differ)"
    assert difference(torch.tensor([float("nan")]), torch.tensor([float("nan")])) == ""


def test_type_and_shape_count():
    assert "torch.float32 (2,), got torch.int32 (2,)" in difference(torch.zeros(2, dtype=torch.int32), torch.zeros(2))
    assert "(2,), got torch.float32 (3,)" in difference(torch.zeros(3), torch.zeros(2))
