"""The mean over ranks: rank order, one division, one rounding, over both kinds of backend."""

from __future__ import annotations

import pytest
import torch
from ranks import BACKENDS, HERE, group_of
from rig import _C, folded, gradients, same_bits

DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16]


def means(backend: str, dtype: torch.dtype, elements: int, divisor: float) -> tuple[str, bool]:
    """On a rank: how the mean was made; whether two in flight together have the oracle's bits."""
    mean = _C.Mean(group_of(backend), torch.device("cpu"))
    inputs = [[gradients(rank, [[elements]], dtype, seed)[0] for rank in range(HERE.size)] for seed in range(2)]
    started = [mean.start(by_rank[HERE.rank].clone(), divisor) for by_rank in inputs]
    results = [reduction.finish() for reduction in started]
    return mean.name, all(same_bits(r, folded(i, divisor)) for r, i in zip(results, inputs, strict=True))


@pytest.mark.parametrize("elements", [1, 3, 1000, 1001])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("backend", BACKENDS)
def test_bits_are_those_of_one_process(trio, backend, dtype, elements):
    name = {"ringdp": "fused", "gloo": "exchanged"}[backend]
    assert trio.run(means, backend, dtype, elements, 3.0) == [(name, True)] * 3


@pytest.mark.parametrize("backend", BACKENDS)
def test_any_divisor_serves(trio, backend):
    assert all(right for _, right in trio.run(means, backend, torch.float32, 777, 1234.0))


def scattered(backend: str, dtype: torch.dtype, elements: int) -> bool:
    """On a rank: its part has the oracle's bits, and the input is as it was."""
    mean = _C.Mean(group_of(backend), torch.device("cpu"))
    by_rank = [gradients(rank, [[elements * HERE.size]], dtype)[0] for rank in range(HERE.size)]
    flat = by_rank[HERE.rank].clone()
    part = mean.start_scatter(flat, 7.0).finish()
    mine = slice(HERE.rank * elements, (HERE.rank + 1) * elements)
    return same_bits(part, folded(by_rank, 7.0)[mine]) and same_bits(flat, by_rank[HERE.rank])


@pytest.mark.parametrize("elements", [1, 1024, 70000])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_part_has_the_bits_of_the_whole(trio, backend, dtype, elements):
    assert trio.run(scattered, backend, dtype, elements) == [True] * 3


def close_to_mean(elements: int) -> tuple[str, float]:
    mean = _C.Mean(group_of("gloo"), torch.device("cpu"), rank_order=False)
    by_rank = [gradients(rank, [[elements]])[0] for rank in range(HERE.size)]
    result = mean.start(by_rank[HERE.rank].clone(), 3.0).finish()
    return mean.name, float((result - folded(by_rank, 3.0)).abs().max())


def test_without_rank_order_the_backend_sums_as_it_does(trio):
    for name, error in trio.run(close_to_mean, 5000):
        assert name == "summed" and error < 1e-6
