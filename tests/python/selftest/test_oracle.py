"""ringdp/selftest/oracle.py: against Python's exact numbers, where those have a word to say."""

from __future__ import annotations

from fractions import Fraction
from functools import reduce as folded

import pytest
import torch
from ringdp.selftest.inputs import values
from ringdp.selftest.meaning import factor_of
from ringdp.selftest.oracle import fold

RANKS, COUNT = 3, 200
INTEGERS = [torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8, torch.uint16, torch.uint32, torch.uint64]
WHOLE = {
    "SUM": lambda a, b: a + b,
    "PRODUCT": lambda a, b: a * b,
    "MIN": min,
    "MAX": max,
    "BAND": lambda a, b: a & b,
    "BOR": lambda a, b: a | b,
    "BXOR": lambda a, b: a ^ b,
}


def wrapped(value: int, dtype: torch.dtype) -> int:
    low, bits = torch.iinfo(dtype).min, torch.iinfo(dtype).bits
    return (value - low) % (1 << bits) + low


@pytest.mark.parametrize("reduce", WHOLE)
@pytest.mark.parametrize("dtype", INTEGERS)
def test_integers_wrap_and_keep_their_order(dtype, reduce):
    inputs = [values("oracle", rank, COUNT, dtype) for rank in range(RANKS)]
    columns = zip(*(tensor.tolist() for tensor in inputs), strict=True)
    assert fold(inputs, reduce).tolist() == [wrapped(folded(WHOLE[reduce], column), dtype) for column in columns]


@pytest.mark.parametrize(
    ("reduce", "function"), [("SUM", any), ("MAX", any), ("BOR", any), ("PRODUCT", all), ("MIN", all)]
)
def test_bool_is_logic(reduce, function):
    inputs = [values("oracle", rank, COUNT, torch.bool) for rank in range(RANKS)]
    assert fold(inputs, reduce).tolist() == [
        function(column) for column in zip(*(t.tolist() for t in inputs), strict=True)
    ]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_16_bit_floats_are_folded_wide_and_rounded_once(dtype):
    inputs = [values("oracle", rank, COUNT, dtype) for rank in range(RANKS)]
    a, b, c = (tensor.float() for tensor in inputs)
    assert torch.equal(fold(inputs, "SUM"), ((a + b) + c).to(dtype))
    assert not torch.equal(fold(inputs, "SUM"), (inputs[0] + inputs[1]) + inputs[2])


def test_the_average_is_one_true_division_of_the_sum():
    inputs = [values("oracle", rank, COUNT, torch.float64) for rank in range(RANKS)]
    for total, mean in zip(fold(inputs, "SUM").tolist(), fold(inputs, "AVG").tolist(), strict=True):
        assert mean == float(Fraction(total) / RANKS)


def test_premul_sum_multiplies_each_rank_s_own():
    inputs = [values("oracle", rank, COUNT, torch.float32) for rank in range(RANKS)]
    scaled = [tensor * factor_of(rank) for rank, tensor in enumerate(inputs)]
    assert torch.equal(fold(inputs, "PREMUL_SUM"), fold(scaled, "SUM"))


@pytest.mark.parametrize("reduce", ["SUM", "AVG"])
def test_complex_numbers_are_pairs(reduce):
    inputs = [values("oracle", rank, COUNT, torch.complex64) for rank in range(RANKS)]
    result = fold(inputs, reduce)
    for part in ("real", "imag"):
        assert torch.equal(getattr(result, part), fold([getattr(tensor, part).clone() for tensor in inputs], reduce))
