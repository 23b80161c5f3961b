"""ringdp/selftest/inputs.py: the same on every rank, different between ranks, and order counts."""

from __future__ import annotations

import pytest
import torch
from ringdp.selftest.compare import difference
from ringdp.selftest.inputs import values
from ringdp.selftest.meaning import COLUMNS, dtype_named

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
