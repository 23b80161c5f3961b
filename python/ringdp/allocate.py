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

    If all ranks pass such tensors to a large collective, it reads and writes them in place, in one pass; otherwise it
    copies, with the same result. Not collective. The tensor stays valid after the group is gone. Forked children must
    not touch it. Collectives of other groups copy it.

    Raises DistBackendError if the group has no shared memory (transport=tcp, heap_bytes=0) or it is full. With
    `fallback`, a group without shared memory gives ordinary memory; a group of one rank always does.
    """
    group, backend = _resolved(group)
    shape = (size,) if isinstance(size, int) else tuple(size)
    dtype = torch.get_default_dtype() if dtype is None else dtype
    if group.size() == 1 or (fallback and not backend.supports_tensor_alloc(_CPU)):
        return torch.empty(shape, dtype=dtype, device=_CPU)
    return backend.allocate_tensor(math.prod(shape), dtype=dtype, device=_CPU).view(shape)


@contextmanager
def in_shared_memory(group: Any = None, *, fallback: bool = False) -> Iterator[None]:
    """Inside, CPU tensors of 4 KiB or more that this thread allocates are in shared memory of `group`.

    with ringdp.in_shared_memory():
        model = Model()  # parameters, and all else that torch allocates: buckets, results, copies

    They are like those of `ringdp.empty`, and can be resized; `group` and `fallback` are the same. Tensors that are
    allocated outside or by other threads (a backward pass), and views of existing memory, are not affected.
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
