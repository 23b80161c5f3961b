"""Folding exchanged shards: the kernel's bits for every dtype a gradient can have."""

from __future__ import annotations

import pytest
import torch
from ranks import HERE, group_of
from rig import _C, same_bits


def both_ways(dtype: torch.dtype, values: list[float]) -> bool:
    """On a rank: exchanged shards against the fused mean of ringdp's backend, on the same input."""
    own = torch.tensor(values).roll(HERE.rank).to(dtype)
    results = []
    for backend in ("ringdp", "gloo"):
        mean = _C.Mean(group_of(backend), torch.device("cpu"))
        results.append(mean.start(own.clone(), 3.0).finish())
    return same_bits(*results)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16], ids=str)
def test_special_values_fold_alike(trio, dtype):
    special = [0.0, -0.0, 1e-40, -3e-8, float("inf"), 65504.0, 1 / 3, 5e-8, -1.5, float("nan"), 6e4, 2.0**-24]
    assert trio.run(both_ways, dtype, special) == [True] * 3
