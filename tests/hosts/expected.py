"""What the collectives must give, computed in one process: values of every rank, and their fold in any order."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

GIANT = 2.0**24


def values(rank: int, count: int, dtype: torch.dtype) -> Tensor:
    """Rank's real-valued input. Ranks 1 and 2 have giants that cancel, so that also a 16-bit sum shows its order."""
    generator = torch.Generator().manual_seed(1000 + rank)
    numbers = torch.randn(count, generator=generator) * 3
    if rank in (1, 2):
        numbers[::7] = GIANT if rank == 1 else -GIANT
    return numbers.to(dtype)


def fold(tensors: Iterable[Tensor], divisor: int = 1) -> Tensor:
    """((t0 + t1) + t2) + ..., 16-bit in fp32; divided, and rounded once."""
    tensors = list(tensors)
    wide = torch.float32 if tensors[0].dtype == torch.bfloat16 else tensors[0].dtype
    total = tensors[0].to(wide)
    for tensor in tensors[1:]:
        total = total + tensor.to(wide)
    return (total / divisor).to(tensors[0].dtype)


def parts(count: int, world: int) -> list[slice]:
    """The balanced division of `count` elements: sizes differ by at most one, the larger parts first."""
    base, extra = divmod(count, world)
    ends = [base * (i + 1) + min(i + 1, extra) for i in range(world)]
    return [slice(end - base - (i < extra), end) for i, end in enumerate(ends)]


def all_reduced(world: int, count: int, dtype: torch.dtype, order: str = "rank", divisor: int = 1) -> Tensor:
    """What all_reduce gives. `rotated`: chunk c is summed from rank c on."""
    inputs = [values(rank, count, dtype) for rank in range(world)]
    if order == "rank":
        return fold(inputs, divisor)
    chunks = parts(count, world)
    return torch.cat([fold((inputs[(c + i) % world][chunks[c]] for i in range(world)), divisor) for c in range(world)])


def scattered(rank: int, world: int, count: int, dtype: torch.dtype, order: str = "rank") -> Tensor:
    """What reduce_scatter of `world * count` elements gives a rank. `rotated`: summed from rank + 1 on."""
    first = rank + 1 if order == "rotated" else 0
    whole = [values((first + i) % world, world * count, dtype) for i in range(world)]
    return fold(tensor[rank * count : (rank + 1) * count] for tensor in whole)


def same_bits(got: Tensor, expected: Tensor) -> bool:
    """Equal in every bit."""
    return got.dtype == expected.dtype and bool(torch.equal(got.view(torch.uint8), expected.view(torch.uint8)))
