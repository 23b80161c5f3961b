"""Tensors in memory that all ranks of a host map: collectives of their group need not copy them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist

_CPU = torch.device("cpu")


def empty(
    size: int | Sequence[int],
    *,
    dtype: torch.dtype | None = None,
    group: Any = None,
    fallback: bool = False,
) -> torch.Tensor:
    """An uninitialised CPU tensor in shared memory of `group` (default: the world), which must be a ringdp group.

    When all ranks bring such tensors, a large collective reads and writes them where they lie, in one pass; otherwise
    it copies, and the result is the same. Nobody else takes part in an allocation. The tensor outlives the group.
    Forked children do not have it; tensors of another group are copied.

    Where a group has no shared memory (transport=tcp, heap_bytes=0) DistBackendError says so, or with `fallback` the
    tensor is an ordinary one. It always is in a group of one rank.
    """
    group, backend = _resolved(group)
    shape = (size,) if isinstance(size, int) else tuple(size)
    dtype = torch.get_default_dtype() if dtype is None else dtype
    if group.size() == 1 or (fallback and not backend.supports_tensor_alloc(_CPU)):
        return torch.empty(shape, dtype=dtype, device=_CPU)
    return backend.allocate_tensor(math.prod(shape), dtype=dtype, device=_CPU).view(shape)


@contextmanager
def in_shared_memory(group: Any = None, *, fallback: bool = False) -> Iterator[None]:
    """CPU tensors of 4 KiB and more that this thread makes inside lie in shared memory of `group` (default: the world).

    with ringdp.in_shared_memory():
        model = Model()  # parameters; and whatever torch allocates: buckets, results, copies

    They are what `ringdp.empty` gives: of full value to every operator, resizable, alive after the group. `group` and
    `fallback` as there. What is made outside, by other threads (a backward pass) or over existing memory is as ever.
    """
    group, backend = _resolved(group)
    if group.size() == 1 or (fallback and not backend.supports_tensor_alloc(_CPU)):
        yield
        return
    backend.enter_allocation_scope()
    try:
        yield
    finally:
        backend.leave_allocation_scope()


def _resolved(group: Any) -> tuple[Any, Any]:
    """The group, and its backend for CPU tensors."""
    group = dist.group.WORLD if group is None else group
    return group, group._get_backend(_CPU)
