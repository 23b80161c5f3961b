"""Collectives and messages on a rank whose results are known; AssertionError on a wrong number."""

from __future__ import annotations

import torch
import torch.distributed as dist
from ranks import HERE

KNOWN = ("Mismatch", "Internal", "PeerLost", "Timeout", "Aborted")  # kinds of errors that a fault may end them with


def of_rank(rank: int, elements: int) -> torch.Tensor:
    """What this rank has: whole numbers, so that every sum is exact."""
    return (torch.arange(elements, dtype=torch.float32) + 1) * (rank + 1)


def expect(got: torch.Tensor, wanted: torch.Tensor) -> None:
    assert torch.equal(got, wanted), "a wrong number"


def reduced(elements: int) -> None:
    own = of_rank(HERE.rank, elements)
    dist.all_reduce(own)
    expect(own, sum(of_rank(rank, elements) for rank in range(HERE.size)))


def gathered(elements: int) -> None:
    all_of_them = [torch.empty(elements) for _ in range(HERE.size)]
    dist.all_gather(all_of_them, of_rank(HERE.rank, elements))
    for rank, got in enumerate(all_of_them):
        expect(got, of_rank(rank, elements))


def moved(elements: int) -> None:
    got = torch.empty(HERE.size * elements)
    dist.all_to_all_single(got, torch.cat([of_rank(HERE.rank + 10 * to, elements) for to in range(HERE.size)]))
    expect(got, torch.cat([of_rank(rank + 10 * HERE.rank, elements) for rank in range(HERE.size)]))


def scattered(elements: int) -> None:
    got = torch.empty(elements)
    dist.reduce_scatter_tensor(got, of_rank(HERE.rank, HERE.size * elements))
    whole = sum(of_rank(rank, HERE.size * elements) for rank in range(HERE.size))
    expect(got, whole[HERE.rank * elements : (HERE.rank + 1) * elements])


def sent(elements: int) -> None:
    to, source = (HERE.rank + 1) % HERE.size, (HERE.rank - 1) % HERE.size
    got = torch.empty(elements)
    works = [dist.isend(of_rank(HERE.rank, elements), to), dist.irecv(got, source)]
    for work in works:
        work.wait()
    expect(got, of_rank(source, elements))


def broadcast(elements: int) -> None:
    got = of_rank(HERE.rank, elements)
    dist.broadcast(got, 1)
    expect(got, of_rank(1, elements))
