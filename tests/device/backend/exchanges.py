"""Every collective once, on tensors of any device: what the device's must equal bit for bit is the CPU's."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
import torch.distributed as dist
from ranks import HERE
from stand_in import backend_of

Put = Callable[[torch.Tensor], torch.Tensor]
Exchange = Callable[[dist.ProcessGroup, Put, torch.dtype, int], list[torch.Tensor]]

SUMS = [torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int32, torch.int64]
MEANS = SUMS[:4]
MOVES = [torch.float32, torch.bool, torch.uint8, torch.float64, torch.int16]
# nothing, less than a pack, no whole pack, one push, one shot, more than a window holds
SIZES = [0, 1, 5, 4099, 100_000, 300_001]


def values(count: int, dtype: torch.dtype, salt: int) -> torch.Tensor:
    """The same on any rank for the same salt; sums depend on the order."""
    generator = torch.Generator().manual_seed(1000 * salt + 17)
    numbers = torch.randn(count, generator=generator, dtype=torch.float64) * 1000
    if dtype is torch.bool:
        return numbers > 0
    return (numbers if dtype.is_floating_point else numbers.long()).to(dtype)


def mine(count: int, dtype: torch.dtype) -> torch.Tensor:
    return values(count, dtype, HERE.rank)


def summed(group: dist.ProcessGroup, put: Put, dtype: torch.dtype, count: int) -> list[torch.Tensor]:
    tensor = put(mine(count, dtype))
    dist.all_reduce(tensor, group=group)
    return [tensor]


def averaged(group: dist.ProcessGroup, put: Put, dtype: torch.dtype, count: int) -> list[torch.Tensor]:
    tensor, divided = put(mine(count, dtype)), put(mine(count, dtype))
    dist.all_reduce(tensor, dist.ReduceOp.AVG, group=group)
    backend_of(group).reduce_div(divided, 3.7).wait()
    return [tensor, divided]


def scattered(group: dist.ProcessGroup, put: Put, dtype: torch.dtype, count: int) -> list[torch.Tensor]:
    part, own = put(torch.zeros(count, dtype=dtype)), put(torch.zeros(count, dtype=dtype))
    whole = put(mine(count * HERE.size, dtype))
    dist.reduce_scatter_tensor(part, whole, group=group)
    dist.reduce_scatter(own, list(whole.chunk(HERE.size)) if count else [whole] * HERE.size, group=group)
    return [part, own, whole]


def gathered(group: dist.ProcessGroup, put: Put, dtype: torch.dtype, count: int) -> list[torch.Tensor]:
    whole = put(torch.zeros(count * HERE.size, dtype=dtype))
    parts = [put(torch.zeros(count, dtype=dtype)) for _ in range(HERE.size)]
    part = put(mine(count, dtype))
    dist.all_gather_into_tensor(whole, part, group=group)
    dist.all_gather(parts, part, group=group)
    return [whole, *parts]


def broadcast(group: dist.ProcessGroup, put: Put, dtype: torch.dtype, count: int) -> list[torch.Tensor]:
    tensors = [put(mine(count, dtype)) for _ in range(HERE.size)]
    for root, tensor in enumerate(tensors):
        dist.broadcast(tensor, root, group=group)
    return tensors


def all_to_all(group: dist.ProcessGroup, put: Put, dtype: torch.dtype, count: int) -> list[torch.Tensor]:
    to = put(torch.zeros(count * HERE.size, dtype=dtype))
    dist.all_to_all_single(to, put(mine(count * HERE.size, dtype)), group=group)
    return [to]


def reduced(group: dist.ProcessGroup, put: Put, dtype: torch.dtype, count: int) -> list[torch.Tensor]:
    """To every root; what others bring stays as it was."""
    tensors = [put(mine(count, dtype)) for _ in range(HERE.size)]
    for root, tensor in enumerate(tensors):
        dist.reduce(tensor, root, group=group)
    return tensors


def reduced_otherwise(group: dist.ProcessGroup, put: Put, dtype: torch.dtype, count: int) -> list[torch.Tensor]:
    """A mean, a premultiplied sum, and a tensor that is not contiguous."""
    tensors = [put(mine(count, dtype)), put(mine(count, dtype)), put(mine(2 * count, dtype).view(count, 2))[:, 0]]
    operations = [dist.ReduceOp.AVG, dist._make_nccl_premul_sum(0.3), dist.ReduceOp.SUM]
    for tensor, operation in zip(tensors, operations, strict=True):
        dist.reduce(tensor, HERE.size - 1, operation, group=group)
    return tensors


def gathered_at_roots(group: dist.ProcessGroup, put: Put, dtype: torch.dtype, count: int) -> list[torch.Tensor]:
    """At every root; parts that are not contiguous, and a root's own part where it is to be."""
    results = []
    for root in range(HERE.size):
        parts = [put(torch.zeros(2 * count, dtype=dtype).view(count, 2))[:, 1] for _ in range(HERE.size)]
        own = put(mine(count, dtype))
        parts[root] = own
        dist.gather(own, parts if HERE.rank == root else None, root, group=group)
        results += parts
    return results


def scattered_by_roots(group: dist.ProcessGroup, put: Put, dtype: torch.dtype, count: int) -> list[torch.Tensor]:
    results = []
    for root in range(HERE.size):
        parts = [put(values(count, dtype, root + 10 * rank)) for rank in range(HERE.size)]
        results.append(put(torch.zeros(count, dtype=dtype)))
        dist.scatter(results[-1], parts if HERE.rank == root else None, root, group=group)
    return results


def uneven(group: dist.ProcessGroup, put: Put, dtype: torch.dtype, count: int) -> list[torch.Tensor]:
    """Lists of parts of different sizes, one of nothing."""
    sizes = [rank * count // 2 for rank in range(HERE.size)]
    parts = [put(torch.zeros(size, dtype=dtype)) for size in sizes]
    dist.all_gather(parts, put(mine(sizes[HERE.rank], dtype)), group=group)
    if dtype is torch.bool:
        return parts
    part = put(torch.zeros(sizes[HERE.rank], dtype=dtype))
    dist.reduce_scatter(part, [put(values(size, dtype, HERE.rank + 7 * size)) for size in sizes], group=group)
    return [*parts, part]


def staged(group: dist.ProcessGroup, put: Put, dtype: torch.dtype, count: int) -> list[torch.Tensor]:
    """What no device runs: through host memory, between calls that devices run."""
    tensor, to = put(mine(count, dtype)), [put(torch.zeros(count, dtype=dtype)) for _ in range(HERE.size)]
    dist.all_reduce(tensor, dist.ReduceOp.MAX, group=group)
    dist.all_to_all(to, [put(values(count, dtype, HERE.rank + 9 * rank)) for rank in range(HERE.size)], group=group)
    return [tensor, *to]


CASES: list[tuple[Exchange, list[torch.dtype]]] = [
    (summed, SUMS),
    (averaged, MEANS),
    (scattered, SUMS),
    (gathered, MOVES),
    (broadcast, MOVES),
    (all_to_all, MOVES),
    (reduced, SUMS),
    (reduced_otherwise, [torch.float32, torch.bfloat16]),
    (gathered_at_roots, MOVES),
    (scattered_by_roots, MOVES),
    (uneven, [torch.float32, torch.bfloat16]),
    (staged, [torch.float32]),
]
THOROUGH = (summed, gathered, reduced, gathered_at_roots, scattered_by_roots, uneven)


def combinations(whole: bool = False) -> Iterator[tuple[Exchange, torch.dtype, int]]:
    """One size for everything; for the kinds of collectives there are of float32 several, or if `whole` every one."""
    for exchange, dtypes in CASES:
        for dtype in dtypes:
            thorough = dtype is torch.float32 and exchange in THOROUGH
            in_pieces = thorough and (whole or exchange in (summed, gathered))
            for size in (1031, *(SIZES if whole and thorough else SIZES[:1] * thorough + SIZES[-1:] * in_pieces)):
                yield exchange, dtype, size
