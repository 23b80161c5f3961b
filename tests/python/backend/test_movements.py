"""Every movement of data against the inputs themselves: dtype x size x ranks x transport x plan."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from oracle import FLOAT8, NUMBERS, Cell, cells_of, every_rank, of_one_call, same_bits, unwritten, values
from ranks import HERE, on_ranks


def room(counts: list[int], dtype: torch.dtype) -> list[torch.Tensor]:
    return [unwritten(count, dtype) for count in counts]


def same(got: list[torch.Tensor], wanted: list[torch.Tensor]) -> bool:
    return all(same_bits(a, b) for a, b in zip(got, wanted, strict=True))


def moves(dtype: torch.dtype, count: int) -> list[str]:
    """On a rank: broadcast from every root, all_gather in both forms; what differs."""
    wrong, inputs = [], every_rank("move", count, dtype)
    for root in range(HERE.size):
        mine = inputs[HERE.rank].clone()
        dist.broadcast(mine, root)
        if not same_bits(mine, inputs[root]):
            wrong.append(f"broadcast from {root}")
    listed, flat = room([count] * HERE.size, dtype), unwritten(count * HERE.size, dtype)
    dist.all_gather(listed, inputs[HERE.rank])
    dist.all_gather_into_tensor(flat, inputs[HERE.rank])
    if not same(listed, inputs):
        wrong.append("all_gather")
    if not same_bits(flat, torch.cat(inputs)):
        wrong.append("all_gather_into_tensor")
    return wrong


def uneven_gathers(dtype: torch.dtype, count: int) -> list[str]:
    """On a rank: every rank gives another number of elements, rank 0 none."""
    inputs = [values("uneven", rank, rank * count, dtype) for rank in range(HERE.size)]
    got = room([rank * count for rank in range(HERE.size)], dtype)
    dist.all_gather(got, inputs[HERE.rank])
    return ["all_gather"] * (not same(got, inputs))


def coalesced_gathers(dtype: torch.dtype, count: int) -> list[str]:
    """On a rank: tensors of all sizes in one call, as lists and flat."""
    if not (sizes := of_one_call(count)):
        return []
    inputs = [every_rank("coalesced", size, dtype) for size in sizes]
    mine = [of_all[HERE.rank] for of_all in inputs]
    lists = [room(sizes, dtype) for _ in range(HERE.size)]
    flats = room([size * HERE.size for size in sizes], dtype)
    dist.all_gather_coalesced(lists, mine)
    dist.group.WORLD.allgather_into_tensor_coalesced(flats, mine).wait()
    wrong = [f"list of rank {rank}" for rank, got in enumerate(lists) if not same(got, [t[rank] for t in inputs])]
    return wrong + ["flat"] * (not same(flats, [torch.cat(of_all) for of_all in inputs]))


def rooted(dtype: torch.dtype, count: int) -> list[str]:
    """On a rank: gather to and scatter from every root."""
    wrong, inputs = [], every_rank("rooted", count, dtype)
    for root in range(HERE.size):
        got = room([count] * HERE.size, dtype) if HERE.rank == root else None
        dist.gather(inputs[HERE.rank], got, dst=root)
        if got is not None and not same(got, inputs):
            wrong.append(f"gather to {root}")
        part = unwritten(count, dtype)
        dist.scatter(part, inputs if HERE.rank == root else None, src=root)
        if not same_bits(part, inputs[HERE.rank]):
            wrong.append(f"scatter from {root}")
    return wrong


def exchanges(dtype: torch.dtype, count: int) -> list[str]:
    """On a rank: all_to_all as lists and flat, equal and uneven; rank s gives rank r (s + r) % N parts."""
    wrong, n, me = [], HERE.size, HERE.rank
    for uneven in (False, True):
        matrix = [[count * ((s + r) % n) if uneven else count for r in range(n)] for s in range(n)]
        inputs = [values("exchange", s, sum(matrix[s]), dtype).split(matrix[s]) for s in range(n)]
        wanted = [inputs[s][me] for s in range(n)]
        recvs = [matrix[s][me] for s in range(n)]
        got, flat = room(recvs, dtype), unwritten(sum(recvs), dtype)
        dist.all_to_all(got, list(inputs[me]))
        dist.all_to_all_single(flat, torch.cat(inputs[me]), *((recvs, matrix[me]) if uneven else ()))
        if not same(got, wanted) or not same_bits(flat, torch.cat(wanted)):
            wrong.append(f"all_to_all {matrix}")
    return wrong


def differences(calls: str, cells: list[Cell]) -> list[str]:
    """On a rank: what differs, of all cells."""
    return [f"{what}: {dtype} x {count}" for dtype, count in cells for what in globals()[calls](dtype, count)]


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


@pytest.mark.parametrize("calls", ["moves", "uneven_gathers", "coalesced_gathers", "rooted", "exchanges"])
def test_everything_arrives(world, place, calls):
    assert world.run(differences, calls, cells_of(place, [*NUMBERS, *FLOAT8])) == [[]] * world.size


@on_ranks(3, True)
def test_rows_are_split_along_dimension_0() -> bool:
    """Splits count rows of dimension 0."""
    n, me = HERE.size, HERE.rank
    sent = torch.arange(float(n * 6)).reshape(2 * n, 3) + 100 * me
    got = torch.empty_like(sent)
    dist.all_to_all_single(got, sent)
    wanted = torch.cat([torch.arange(float(6)).reshape(2, 3) + 6 * me + 100 * s for s in range(n)])
    return torch.equal(got, wanted)


def test_objects(world):
    wanted = [{"rank": rank, "text": "x" * (1000 * rank)} for rank in range(world.size)]
    last = world.size - 1
    assert world.run(objects) == [(wanted, [last, "from", last], wanted, True)] * world.size
