"""send and recv as torch offers them: tags, any source, batches, large and odd tensors, errors; beside collectives."""

from __future__ import annotations

import itertools
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from oracle import FLOAT8, LARGE, NUMBERS, SIZES, same_bits, unwritten, values
from ranks import HERE, on_ranks


def ring_of(dtypes: list[torch.dtype], sizes: list[int]) -> list[str]:
    """On a rank: to the next and from the previous one, blocking, the even ranks sending first."""
    wrong, n, me = [], HERE.size, HERE.rank
    for dtype, count in itertools.product(dtypes, sizes):
        mine, got = values("ring", me, count, dtype), unwritten(count, dtype)
        calls = [lambda mine=mine: dist.send(mine, (me + 1) % n), lambda got=got: dist.recv(got, (me - 1) % n)]
        for call in calls if me % 2 == 0 else reversed(calls):
            call()
        if not same_bits(got, values("ring", (me - 1) % n, count, dtype)):
            wrong.append(f"{dtype} x {count}")
    return wrong


def all_pairs(sizes: list[int]) -> list[str]:
    """On a rank: everything in flight at once, to and from all, in another order on each side, and sums beside it."""
    n, me, wrong = HERE.size, HERE.rank, []
    others = [rank for rank in range(n) if rank != me]
    sums = torch.ones(1000)
    work = [dist.all_reduce(sums, async_op=True)]
    got = {(rank, tag): torch.empty(count) for rank in others for tag, count in enumerate(sizes)}
    work += [dist.irecv(tensor, rank, tag=tag) for (rank, tag), tensor in reversed(got.items())]
    for tag, count in enumerate(sizes):
        work += [dist.isend(values(f"{me} to {rank}", tag, count, torch.float32), rank, tag=tag) for rank in others]
    work.append(dist.all_reduce(sums, async_op=True))
    for each in work:
        each.wait()
    for (rank, tag), tensor in got.items():
        if not same_bits(tensor, values(f"{rank} to {me}", tag, len(tensor), torch.float32)):
            wrong.append(f"{len(tensor)} from {rank}")
    return wrong if bool((sums == n * n).all()) else [*wrong, "all_reduce"]


def from_anyone() -> tuple[list[int], list[float]]:
    """On rank 0: from any source, one of each; elsewhere: one to rank 0."""
    if HERE.rank > 0:
        dist.send(torch.full((3,), float(HERE.rank)), 0, tag=5)
        return [], []
    tensors = [torch.zeros(3) for _ in range(HERE.size - 1)]
    sources = [dist.recv(tensor, tag=5) for tensor in tensors]
    return sources, [float(tensor[0]) for tensor in tensors]


def in_subgroup() -> float:
    """On a rank: ranks 2 and 1 in a group in which they are 0 and 1."""
    group = dist.new_group([1, 2])
    tensor = torch.full((4,), float(HERE.rank))
    if HERE.rank == 2:
        dist.send(tensor, group=group, group_dst=0)
    elif HERE.rank == 1:
        dist.recv(tensor, group=group, group_src=1)
    dist.barrier()
    if HERE.rank > 0:
        dist.destroy_process_group(group)
    return float(tensor[0])


def unanswered() -> str:
    """On a rank, in a group of its own: rank 1 receives what nobody sends."""
    group = dist.new_group(range(HERE.size), timeout=timedelta(seconds=1))
    said = ""
    if HERE.rank == 1:
        with pytest.raises(dist.DistBackendError) as error:
            dist.recv(torch.ones(3), 0, group=group, tag=9)
        said = str(error.value)
    dist.barrier()
    dist.destroy_process_group(group)
    return said


def test_round_the_ring(trio):
    assert trio.run(ring_of, [*NUMBERS, *FLOAT8], SIZES) == [[]] * 3


def test_large_messages(trio):
    assert trio.run(ring_of, [torch.float32], [LARGE, 3 * LARGE]) == [[]] * 3


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_everything_at_once_beside_collectives(world_of, size, transport):
    assert world_of(size, transport=transport).run(all_pairs, [*SIZES, LARGE]) == [[]] * size


def test_any_source(trio):
    (sources, numbers), *_ = trio.run(from_anyone)
    assert sorted(sources) == [1, 2] and numbers == [float(rank) for rank in sources]


@on_ranks(3, True)
def test_batches() -> bool:
    """Batch_isend_irecv round the ring."""
    n, me = HERE.size, HERE.rank
    mine, got = torch.full((1000,), float(me)), torch.zeros(1000)
    calls = [dist.P2POp(dist.isend, mine, (me + 1) % n), dist.P2POp(dist.irecv, got, (me - 1) % n)]
    for work in dist.batch_isend_irecv(calls):
        work.wait()
    return bool((got == (me - 1) % n).all())


@on_ranks(3, True)
def test_any_strides() -> bool:
    """A transposed tensor goes out, every other column comes in."""
    n, me = HERE.size, HERE.rank
    memory = torch.full((3, 8), -1.0)
    work = dist.isend(torch.arange(12.0).reshape(4, 3).t() + me, (me + 1) % n)
    dist.recv(memory[:, ::2], (me - 1) % n)
    work.wait()
    wanted = torch.arange(12.0).reshape(4, 3).t() + (me - 1) % n
    return torch.equal(memory[:, ::2], wanted) and bool((memory[:, 1::2] == -1).all())


def test_ranks_are_those_of_the_group(trio):
    assert trio.run(in_subgroup) == [0.0, 2.0, 2.0]


@pytest.mark.parametrize(("case", "texts"), [("size", ("float32 x 4", "float32 x 5")), ("dtype", ("float32", "int32"))])
@on_ranks(3)
def test_a_receive_of_something_else_is_a_mismatch_on_every_rank(case: str, texts: tuple[str, str]) -> None:
    """In a group of its own: rank 0 sends what rank 1 does not expect; what each is told."""
    group = dist.new_group(range(HERE.size))
    sent, expected = {
        "size": (torch.ones(4), torch.ones(5)),
        "dtype": (torch.ones(4), torch.ones(4, dtype=torch.int32)),
    }[case]
    with pytest.raises(dist.DistBackendError, match="^Mismatch: ") as said:
        if HERE.rank == 0:
            dist.send(sent, 1, group=group, tag=7)
        elif HERE.rank == 1:
            dist.recv(expected, 0, group=group, tag=7)
        dist.barrier(group=group)
    dist.barrier()
    dist.destroy_process_group(group)
    assert all(text in str(said.value) for text in (*texts, "rank 0", "rank 1", "tag 7")), said.value


def test_a_receive_nobody_answers_says_whom_it_waited_for(trio):
    said = trio.run(unanswered)[1]
    assert said.startswith("Timeout: ")
    assert "rank 0" in said and "tag 9" in said, said
