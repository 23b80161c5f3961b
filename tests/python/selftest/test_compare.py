"""ringdp/selftest/compare.py: bits, not values."""

from __future__ import annotations

import pytest
import torch
from ringdp.selftest.compare import difference
from ringdp.selftest.inputs import values
from ringdp.selftest.meaning import COLUMNS, dtype_named


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
