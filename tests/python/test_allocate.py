"""ringdp.empty: shapes, dtypes, what it refuses, and that collectives on its tensors give the oracle's bits."""

from __future__ import annotations

import pytest
import ringdp
import torch
import torch.distributed as dist
from oracle import fold, same_bits, values
from ranks import HERE, on_ranks
from torch import Tensor

COUNTS = [1000, 60_000, 100_003]  # small ones take slots, the others one pass
DTYPES = [torch.float32, torch.bfloat16, torch.float64, torch.int64, torch.complex64, torch.bool]


def filled(value: Tensor, shared: bool = True) -> Tensor:
    """A tensor of these values, in shared memory unless said otherwise."""
    if not shared:
        return value.clone()
    return ringdp.empty(value.shape, dtype=value.dtype).copy_(value)


def memory_traffic() -> int:
    """Bytes that this rank's collectives have read and written so far."""
    counters = dist.group.WORLD._get_backend(torch.device("cpu")).counters()
    return counters["memory_bytes_read"] + counters["memory_bytes_written"]


def collectives(shared: bool) -> list[str]:
    """On a rank: what differs from the oracle."""
    wrong = []
    n, me = HERE.size, HERE.rank
    for dtype in DTYPES:
        for count in COUNTS:
            inputs = [values("shared", rank, n * count, dtype) for rank in range(n)]
            total, root = fold(inputs, "SUM"), n - 1
            own = slice(count * me, count * (me + 1))
            summed, reduced, sent = (filled(inputs[me], shared) for _ in range(3))
            parts, part = filled(inputs[me], shared), filled(inputs[me][:count], shared)
            gathered = filled(torch.zeros(n * count, dtype=dtype), shared)
            exchanged = filled(gathered, shared)
            collected, scattered = gathered.clone(), filled(inputs[me][:count], shared)
            dist.all_reduce(summed)
            dist.reduce(reduced, root)
            dist.broadcast(sent, root)
            dist.reduce_scatter_tensor(part, parts)
            dist.all_gather_into_tensor(gathered, part)
            dist.gather(part, list(collected.tensor_split(n)) if me == root else None, root)
            dist.all_to_all_single(exchanged, parts)
            dist.scatter(scattered, list(parts.tensor_split(n)) if me == root else None, root)
            checks = {
                "all_reduce": same_bits(summed, total),
                "reduce": same_bits(reduced, total if me == root else inputs[me]),
                "broadcast": same_bits(sent, inputs[root]),
                "reduce_scatter": same_bits(part, total[own]),
                "reduce_scatter's input": same_bits(parts, inputs[me]),
                "all_gather": same_bits(gathered, total),
                "all_to_all": same_bits(exchanged, torch.cat([tensor[own] for tensor in inputs])),
                "gather": me != root or same_bits(collected, total),
                "scatter": same_bits(scattered, inputs[root][own]),
            }
            wrong += [f"{what} {dtype} x {count}" for what, right in checks.items() if not right]
    return wrong


@pytest.mark.parametrize("size", [2, 3, 4])
def test_collectives_on_shared_tensors_give_the_oracles_bits(world_of, size):
    assert world_of(size).run(collectives, True) == [[]] * size


@pytest.mark.parametrize("shared_on", [[0], [1, 2], [2]])
@on_ranks(3, [])
def test_ranks_may_bring_different_kinds_of_tensors(shared_on: list[int]) -> list[str]:
    """The same with shared tensors on some ranks only."""
    return collectives(HERE.rank in shared_on)


@on_ranks(3, True)
def test_an_all_to_all_of_unequal_parts_is_right_too() -> bool:
    """An all_to_all of shared tensors in which two ranks have equal parts, of different sizes."""
    me, small, large = HERE.rank, 5_000, 40_000
    sent = [[small, large, 1], [large, small, large], [1, large, large]]
    mine, theirs = sent[me], [row[me] for row in sent]
    parts = filled(torch.cat([torch.full((n,), float(10 * me + q)) for q, n in enumerate(mine)]), True)
    got = filled(torch.zeros(sum(theirs)), True)
    dist.all_to_all_single(got, parts, theirs, mine)
    return same_bits(got, torch.cat([torch.full((n,), float(10 * q + me)) for q, n in enumerate(theirs)]))


def traffic_of_one(what: str, shared: bool) -> float:
    """On a rank: bytes moved in memory per byte of the tensor."""
    tensor, output = filled(torch.ones(1 << 20), shared), filled(torch.ones(1 << 20), shared)
    before = memory_traffic()
    if what == "all_reduce":
        dist.all_reduce(tensor)
    else:
        dist.all_to_all_single(output, tensor)
    return (memory_traffic() - before) / tensor.nbytes


@pytest.mark.parametrize("what", ["all_reduce", "all_to_all"])
def test_a_shared_tensor_is_read_once_and_written_once(world_of, what):
    assert world_of(4).run(traffic_of_one, what, True) == [2.0] * 4


def test_an_ordinary_tensor_is_copied(world_of):
    assert min(world_of(4).run(traffic_of_one, "all_reduce", False)) > 2.0


def described(size: object, dtype: torch.dtype | None) -> tuple[tuple[int, ...], torch.dtype, bool, bool]:
    tensor = ringdp.empty(size, dtype=dtype)
    return tuple(tensor.shape), tensor.dtype, tensor.is_contiguous(), tensor.device.type == "cpu"


@pytest.mark.parametrize(("size", "shape"), [(5, (5,)), ((2, 3), (2, 3)), ((), ()), (0, (0,)), ([4, 0], (4, 0))])
@pytest.mark.parametrize("dtype", [None, torch.int8])
def test_shape_and_dtype(world_of, size, shape, dtype):
    assert world_of(2).run(described, size, dtype) == [(shape, dtype or torch.float32, True, True)] * 2


def refusal(fallback: bool) -> str:
    """On a rank: the error's message, or the sum of an all_reduce over what came instead."""
    try:
        tensor = ringdp.empty(3, fallback=fallback).fill_(1)
    except dist.DistBackendError as error:
        return str(error)
    dist.all_reduce(tensor)
    return str(tensor.tolist())


@pytest.mark.parametrize(("settings", "reason"), [({"transport": "tcp"}, "not connected"), ({"heap_bytes": 0}, "is 0")])
def test_without_shared_memory_it_refuses_or_falls_back(world_of, settings, reason):
    world = world_of(2, **settings)
    assert all("InvalidArgument" in said and reason in said for said in world.run(refusal, False))
    assert world.run(refusal, True) == ["[2.0, 2.0, 2.0]"] * 2


def test_a_single_rank_gets_an_ordinary_tensor(world_of):
    assert world_of(1).run(refusal, False) == ["[1.0, 1.0, 1.0]"]
