"""The mean over ranks: rank order, one division, one rounding, over both kinds of backend; sparse gradients; times."""

from __future__ import annotations

import pytest
import torch
from ranks import BACKENDS, HERE, group_of, on_ranks
from rig import _C, backward, folded, gradients, reducer_of, same_bits

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


@pytest.mark.parametrize("elements", [1, 1024, 70000])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("backend", BACKENDS)
@on_ranks(3, True)
def test_a_part_has_the_bits_of_the_whole(backend: str, dtype: torch.dtype, elements: int) -> bool:
    """Its part has the oracle's bits, and the input is as it was."""
    mean = _C.Mean(group_of(backend), torch.device("cpu"))
    by_rank = [gradients(rank, [[elements * HERE.size]], dtype)[0] for rank in range(HERE.size)]
    flat = by_rank[HERE.rank].clone()
    part = mean.start_scatter(flat, 7.0).finish()
    mine = slice(HERE.rank * elements, (HERE.rank + 1) * elements)
    return same_bits(part, folded(by_rank, 7.0)[mine]) and same_bits(flat, by_rank[HERE.rank])


@on_ranks(3)
def test_without_rank_order_the_backend_sums_as_it_does() -> None:
    mean = _C.Mean(group_of("gloo"), torch.device("cpu"), rank_order=False)
    by_rank = [gradients(rank, [[5000]])[0] for rank in range(HERE.size)]
    result = mean.start(by_rank[HERE.rank].clone(), 3.0).finish()
    assert mean.name == "summed" and (result - folded(by_rank, 3.0)).abs().max() < 1e-6


# Means by exchanged shards: lengths that do not divide, several in flight, memory left alone.


@pytest.mark.parametrize("count", [1, 2, 5])
@pytest.mark.parametrize("elements", [1, 64])
@on_ranks(3, True)
def test_means_in_flight_keep_their_order_and_their_lengths(count: int, elements: int) -> bool:
    """`count` means started before the first is waited for, finished in order."""
    mean = _C.Mean(group_of("gloo"), torch.device("cpu"))
    inputs = [[gradients(rank, [[elements + n]], seed=n)[0] for rank in range(HERE.size)] for n in range(count)]
    flats = [by_rank[HERE.rank].clone() for by_rank in inputs]
    started = [mean.start(flat, 3.0) for flat in flats]
    results = [reduction.finish() for reduction in started]
    in_place = all(r.data_ptr() == f.data_ptr() for r, f in zip(results, flats, strict=True))
    return in_place and all(same_bits(r, folded(i, 3.0)) for r, i in zip(results, inputs, strict=True))


@on_ranks(3, True)
def test_padding_is_not_taken_from_the_neighbours() -> bool:
    """A view of 5 elements; its neighbours must not change."""
    whole = torch.arange(20.0)
    _C.Mean(group_of("gloo"), torch.device("cpu")).start(whole[7:12], 1.0).finish()
    expected = torch.arange(20.0)
    expected[7:12] *= 3
    return same_bits(whole, expected)


# Folding exchanged shards: the kernel's bits for every dtype a gradient can have.


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


# Sparse gradients: the mean of embeddings' gradients, with ranks that used none.


def mean_of_rows(backend: str, used_by: list[int]) -> list[list[float]]:
    """On a rank: rank r looks up rows r and 0 of a table, if it is one of `used_by`; the dense mean."""
    table = torch.zeros(5, 2, requires_grad=True)
    weight = torch.zeros(2, requires_grad=True)
    reducer = reducer_of([table, weight], backend, sparse=[True, False], find_unused=True)
    rows = torch.nn.functional.embedding(torch.tensor([HERE.rank, 0]), table, sparse=True)
    loss = (weight * 3.0).sum() + (rows.sum() * 3.0 if HERE.rank in used_by else 0.0)
    reducer.prepare_for_forward()
    reducer.prepare_for_backward([loss])
    loss.backward()
    return table.grad.to_dense().tolist()


@pytest.mark.parametrize("used_by", [[0, 1, 2], [1, 2]])
@pytest.mark.parametrize("backend", BACKENDS)
def test_rows_are_summed_and_divided(trio, backend, used_by):
    expected = torch.zeros(5, 2)
    for rank in used_by:
        expected[rank] += 1
        expected[0] += 1
    assert trio.run(mean_of_rows, backend, used_by) == [expected.tolist()] * 3


@on_ranks(1, error="gradient of p0 is dense")
def test_a_dense_gradient_of_a_sparse_layer_is_named() -> None:
    table = torch.zeros(5, 2, requires_grad=True)
    reducer = reducer_of([table], sparse=[True])
    reducer.prepare_for_forward()
    reducer.prepare_for_backward([])
    table.sum().backward()


# When collectives ended, on every kind of backend: after they were launched, before the step was over.


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize(("backend", "rank_order"), [("ringdp", True), ("gloo", True), ("gloo", False)])
@on_ranks(3, True)
def test_times_are_in_order(backend: str, overlap: bool, rank_order: bool) -> bool:
    """Launched <= done <= finished for each of several buckets."""
    parameters = [torch.zeros(20000, requires_grad=True) for _ in range(4)]
    reducer = reducer_of(parameters, backend, bucket_limits=[1], overlap=overlap, rank_order=rank_order)
    backward(reducer, parameters, [torch.ones(20000)] * 4)
    times = reducer.timeline()
    assert len(times["buckets"]) == 4
    in_order = all(r <= launched <= done <= times["finished"] for r, launched, done in times["buckets"])
    return in_order and times["forward"] <= times["backward"] <= times["computed"] <= times["finished"]
