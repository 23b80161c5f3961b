"""ringdp/selftest/oracle.py: another computation of the same, that of the backend's tests."""

from __future__ import annotations

import oracle as backends
import pytest
import torch
from ringdp.selftest.inputs import values
from ringdp.selftest.meaning import REDUCE_OPS, factor_of, has_meaning
from ringdp.selftest.oracle import fold

RANKS, COUNT = 3, 200


def inputs_of(dtype: torch.dtype) -> list[torch.Tensor]:
    return [values("oracle", rank, COUNT, dtype) for rank in range(RANKS)]


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
