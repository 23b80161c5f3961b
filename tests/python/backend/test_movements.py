"""Every movement of data against the inputs themselves: dtype x size x ranks x transport x plan."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from oracle import FLOAT8, LARGE, NUMBERS, SIZES, combinations, same_bits, values
from ranks import HERE


def every_rank(label: str, count: int, dtype: torch.dtype) -> list[torch.Tensor]:
    return [values(label, rank, count, dtype) for rank in range(HERE.size)]


def empties(counts: list[int], dtype: torch.dtype) -> list[torch.Tensor]:
    return [torch.empty(count, dtype=dtype) for count in counts]


def same(got: list[torch.Tensor], wanted: list[torch.Tensor]) -> bool:
    return all(same_bits(a, b) for a, b in zip(got, wanted, strict=True))


def moves(dtype: torch.dtype, sizes: list[int]) -> list[str]:
    """On a rank: broadcast from every root, all_gather in both forms; what differs."""
    wrong = []
    for count in sizes:
        inputs = every_rank("move", count, dtype)
        for root in range(HERE.size):
            mine = inputs[HERE.rank].clone()
            dist.broadcast(mine, root)
            if not same_bits(mine, inputs[root]):
                wrong.append(f"broadcast from {root}: {dtype} x {count}")
        listed = [torch.empty(count, dtype=dtype) for _ in inputs]
        dist.all_gather(listed, inputs[HERE.rank])
        flat = torch.empty(count * HERE.size, dtype=dtype)
        dist.all_gather_into_tensor(flat, inputs[HERE.rank])
        if not all(same_bits(a, b) for a, b in zip(listed, inputs, strict=True)):
            wrong.append(f"all_gather: {dtype} x {count}")
        if not same_bits(flat, torch.cat(inputs)):
            wrong.append(f"all_gather_into_tensor: {dtype} x {count}")
    return wrong


def uneven_gathers(dtype: torch.dtype, sizes: list[int]) -> list[str]:
    """On a rank: every rank gives another number of elements, rank 0 none."""
    wrong = []
    for count in sizes:
        inputs = [values("uneven", rank, rank * count, dtype) for rank in range(HERE.size)]
        got = empties([rank * count for rank in range(HERE.size)], dtype)
        dist.all_gather(got, inputs[HERE.rank])
        if not same(got, inputs):
            wrong.append(f"all_gather {dtype} x {count} * rank")
    return wrong


def coalesced_gathers(dtype: torch.dtype, sizes: list[int]) -> list[str]:
    """On a rank: several tensors in one call, as lists and flat."""
    inputs = [every_rank("coalesced", count, dtype) for count in sizes]
    mine = [of_all[HERE.rank] for of_all in inputs]
    lists = [empties(sizes, dtype) for _ in range(HERE.size)]
    flats = empties([count * HERE.size for count in sizes], dtype)
    dist.all_gather_coalesced(lists, mine)
    dist.group.WORLD.allgather_into_tensor_coalesced(flats, mine).wait()
    wrong = [f"list of rank {rank}" for rank, got in enumerate(lists) if not same(got, [t[rank] for t in inputs])]
    return wrong + ["flat"] * (not same(flats, [torch.cat(of_all) for of_all in inputs]))


def rooted(dtype: torch.dtype, sizes: list[int]) -> list[str]:
    """On a rank: gather to and scatter from every root."""
    wrong = []
    for count in sizes:
        for root in range(HERE.size):
            inputs = every_rank("rooted", count, dtype)
            got = empties([count] * HERE.size, dtype) if HERE.rank == root else None
            dist.gather(inputs[HERE.rank], got, dst=root)
            if got is not None and not same(got, inputs):
                wrong.append(f"gather to {root}: {dtype} x {count}")
            part = torch.empty(count, dtype=dtype)
            dist.scatter(part, inputs if HERE.rank == root else None, src=root)
            if not same_bits(part, inputs[HERE.rank]):
                wrong.append(f"scatter from {root}: {dtype} x {count}")
    return wrong


def exchanges(dtype: torch.dtype, sizes: list[int]) -> list[str]:
    """On a rank: all_to_all as lists and flat, equal and uneven; rank s gives rank r (s + r) % N parts."""
    wrong, n, me = [], HERE.size, HERE.rank
    for count in sizes:
        for uneven in (False, True):
            matrix = [[count * ((s + r) % n) if uneven else count for r in range(n)] for s in range(n)]
            inputs = [values("exchange", s, sum(matrix[s]), dtype).split(matrix[s]) for s in range(n)]
            wanted = [inputs[s][me] for s in range(n)]
            recvs = [matrix[s][me] for s in range(n)]
            got = empties(recvs, dtype)
            dist.all_to_all(got, list(inputs[me]))
            flat = torch.empty(sum(recvs), dtype=dtype)
            dist.all_to_all_single(flat, torch.cat(inputs[me]), *((recvs, matrix[me]) if uneven else ()))
            if not same(got, wanted) or not same_bits(flat, torch.cat(wanted)):
                wrong.append(f"all_to_all {dtype} x {matrix}")
    return wrong


def rows() -> bool:
    """On a rank: splits count rows of dimension 0."""
    n, me = HERE.size, HERE.rank
    sent = torch.arange(float(n * 6)).reshape(2 * n, 3) + 100 * me
    got = torch.empty_like(sent)
    dist.all_to_all_single(got, sent)
    wanted = torch.cat([torch.arange(float(6)).reshape(2, 3) + 6 * me + 100 * s for s in range(n)])
    return torch.equal(got, wanted)


def objects() -> tuple[object, object, object, object]:
    """On a rank: objects of different sizes through all_gather, broadcast, gather and scatter."""
    n, last = HERE.size, HERE.size - 1
    mine = {"rank": HERE.rank, "text": "x" * (1000 * HERE.rank)}
    gathered: list[object] = [None] * n
    dist.all_gather_object(gathered, mine)
    sent = [HERE.rank, "from", HERE.rank] if HERE.rank == last else [None, None, None]
    dist.broadcast_object_list(sent, src=last)
    at_root = [None] * n if HERE.rank == last else None
    dist.gather_object(mine, at_root, dst=last)
    part = [None]
    dist.scatter_object_list(part, gathered if HERE.rank == last else None, src=last)
    return gathered, sent, at_root or gathered, part == [mine]


@pytest.mark.parametrize(("world", "dtype"), combinations([*NUMBERS, *FLOAT8]), indirect=["world"], ids=str)
@pytest.mark.parametrize("calls", [moves, uneven_gathers, coalesced_gathers, rooted, exchanges])
def test_everything_arrives(world, calls, dtype):
    assert world.run(calls, dtype, SIZES) == [[]] * world.size


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64], ids=str)
@pytest.mark.parametrize("calls", [moves, uneven_gathers, rooted, exchanges])
def test_large_tensors_arrive(world, calls, dtype):
    assert world.run(calls, dtype, [LARGE]) == [[]] * world.size


def test_rows_are_split_along_dimension_0(trio):
    assert trio.run(rows) == [True] * 3


def test_objects(world):
    wanted = [{"rank": rank, "text": "x" * (1000 * rank)} for rank in range(world.size)]
    last = world.size - 1
    assert world.run(objects) == [(wanted, [last, "from", last], wanted, True)] * world.size
