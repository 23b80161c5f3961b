"""The collectives that compute: all_reduce, reduce, reduce_scatter in three forms, and the coalesced ones."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.distributed as dist

from ringdp.selftest.meaning import reduce_op
from ringdp.selftest.oracle import fold
from ringdp.selftest.seat import Check, Seat


def all_reduce(seat: Seat, dtype: torch.dtype, reduce: str, count: int) -> Iterator[Check]:
    """In place, on every rank."""
    inputs = seat.inputs(count, dtype)
    mine = seat.copy_of(inputs[seat.rank])
    seat.wait(dist.all_reduce(mine, op=reduce_op(reduce, seat.rank), **seat.options()))
    yield "result", mine, fold(inputs, reduce)


def reduce_to_each(seat: Seat, dtype: torch.dtype, reduce: str, count: int) -> Iterator[Check]:
    """To every root in turn; only the root's result is defined."""
    inputs = seat.inputs(count, dtype)
    for root in range(seat.size):
        mine = seat.copy_of(inputs[seat.rank])
        seat.wait(dist.reduce(mine, group_dst=root, op=reduce_op(reduce, seat.rank), **seat.options()))
        if seat.rank == root:
            yield f"result on root {root}", mine, fold(inputs, reduce)


def reduce_scatter(seat: Seat, dtype: torch.dtype, reduce: str, count: int) -> Iterator[Check]:
    """A list of equal parts."""
    yield from _scatter_parts(seat, dtype, reduce, [count] * seat.size)


def reduce_scatter_uneven(seat: Seat, dtype: torch.dtype, reduce: str, count: int) -> Iterator[Check]:
    """A list of parts of different sizes."""
    yield from _scatter_parts(seat, dtype, reduce, [count + rank for rank in range(seat.size)])


def _scatter_parts(seat: Seat, dtype: torch.dtype, reduce: str, sizes: list[int]) -> Iterator[Check]:
    inputs = seat.inputs(sum(sizes), dtype)
    given = seat.copy_of(inputs[seat.rank])
    output = torch.empty(sizes[seat.rank], dtype=dtype)
    operation = reduce_op(reduce, seat.rank)
    seat.wait(dist.reduce_scatter(output, list(given.split(sizes)), op=operation, **seat.options()))
    yield "result", output, fold(inputs, reduce).split(sizes)[seat.rank]
    yield "input, which must stay", given, inputs[seat.rank]


def reduce_scatter_tensor(seat: Seat, dtype: torch.dtype, reduce: str, count: int) -> Iterator[Check]:
    """One flat tensor."""
    inputs = seat.inputs(count * seat.size, dtype)
    output = torch.empty(count, dtype=dtype)
    operation = reduce_op(reduce, seat.rank)
    seat.wait(dist.reduce_scatter_tensor(output, seat.copy_of(inputs[seat.rank]), op=operation, **seat.options()))
    yield "result", output, fold(inputs, reduce)[seat.rank * count :][:count]


def all_reduce_coalesced(seat: Seat, dtype: torch.dtype, reduce: str, count: int) -> Iterator[Check]:
    """Two tensors in one call."""
    pair = [seat.inputs(count, dtype, "first"), seat.inputs(count + 3, dtype, "second")]
    mine = [seat.copy_of(inputs[seat.rank]) for inputs in pair]
    operation = reduce_op(reduce, seat.rank)
    with dist._coalescing_manager(seat.group, async_ops=seat.asynchronous) as bracket:
        for tensor in mine:
            dist.all_reduce(tensor, op=operation, group=seat.group)
    if seat.asynchronous:
        bracket.wait()
    for which, (tensor, inputs) in enumerate(zip(mine, pair, strict=True)):
        yield f"tensor {which}", tensor, fold(inputs, reduce)


def reduce_scatter_coalesced(seat: Seat, dtype: torch.dtype, reduce: str, count: int) -> Iterator[Check]:
    """Two flat tensors in one call."""
    counts = [count, count + 3]
    pair = [seat.inputs(n * seat.size, dtype, str(n)) for n in counts]
    outputs = [torch.empty(n, dtype=dtype) for n in counts]
    operation = reduce_op(reduce, seat.rank)
    with dist._coalescing_manager(seat.group, async_ops=seat.asynchronous) as bracket:
        for output, inputs in zip(outputs, pair, strict=True):
            dist.reduce_scatter_tensor(output, seat.copy_of(inputs[seat.rank]), op=operation, group=seat.group)
    if seat.asynchronous:
        bracket.wait()
    for n, output, inputs in zip(counts, outputs, pair, strict=True):
        yield f"output of {n}", output, fold(inputs, reduce)[seat.rank * n :][:n]
