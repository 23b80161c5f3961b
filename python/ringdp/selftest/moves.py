"""The collectives that only move elements: broadcast, gather, scatter, all_gather in its forms, and barrier."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.distributed as dist

from ringdp.selftest.seat import Check, Seat


def broadcast(seat: Seat, dtype: torch.dtype, _: str, count: int) -> Iterator[Check]:
    """From every root in turn."""
    inputs = seat.inputs(count, dtype)
    for root in range(seat.size):
        mine = seat.copy_of(inputs[seat.rank])
        seat.wait(dist.broadcast(mine, group_src=root, **seat.options()))
        yield f"result from root {root}", mine, inputs[root]


def all_gather(seat: Seat, dtype: torch.dtype, _: str, count: int) -> Iterator[Check]:
    """Into a list of equal parts."""
    yield from _gather_parts(seat, dtype, [count] * seat.size)


def all_gather_uneven(seat: Seat, dtype: torch.dtype, _: str, count: int) -> Iterator[Check]:
    """Into a list of parts of different sizes."""
    yield from _gather_parts(seat, dtype, [count + rank for rank in range(seat.size)])


def _gather_parts(seat: Seat, dtype: torch.dtype, sizes: list[int]) -> Iterator[Check]:
    inputs = [seat.inputs(size, dtype)[rank] for rank, size in enumerate(sizes)]
    outputs = [torch.empty(size, dtype=dtype) for size in sizes]
    seat.wait(dist.all_gather(outputs, seat.copy_of(inputs[seat.rank]), **seat.options()))
    for rank, output in enumerate(outputs):
        yield f"part of rank {rank}", output, inputs[rank]


def all_gather_into_tensor(seat: Seat, dtype: torch.dtype, _: str, count: int) -> Iterator[Check]:
    """Into one flat tensor."""
    inputs = seat.inputs(count, dtype)
    output = torch.empty(count * seat.size, dtype=dtype)
    seat.wait(dist.all_gather_into_tensor(output, seat.copy_of(inputs[seat.rank]), **seat.options()))
    yield "result", output, torch.cat(inputs)


def all_gather_coalesced(seat: Seat, dtype: torch.dtype, _: str, count: int) -> Iterator[Check]:
    """Two flat tensors in one call."""
    pair = [seat.inputs(count, dtype, "first"), seat.inputs(count + 3, dtype, "second")]
    outputs = [torch.empty(len(inputs[0]) * seat.size, dtype=dtype) for inputs in pair]
    with dist._coalescing_manager(seat.group, async_ops=seat.asynchronous) as bracket:
        for output, inputs in zip(outputs, pair, strict=True):
            dist.all_gather_into_tensor(output, seat.copy_of(inputs[seat.rank]), group=seat.group)
    if seat.asynchronous:
        bracket.wait()
    for which, (output, inputs) in enumerate(zip(outputs, pair, strict=True)):
        yield f"tensor {which}", output, torch.cat(inputs)


def gather(seat: Seat, dtype: torch.dtype, _: str, count: int) -> Iterator[Check]:
    """To every root in turn."""
    inputs = seat.inputs(count, dtype)
    for root in range(seat.size):
        outputs = [torch.empty(count, dtype=dtype) for _ in inputs] if seat.rank == root else None
        seat.wait(dist.gather(seat.copy_of(inputs[seat.rank]), outputs, group_dst=root, **seat.options()))
        for rank, output in enumerate(outputs or []):
            yield f"part of rank {rank} on root {root}", output, inputs[rank]


def scatter(seat: Seat, dtype: torch.dtype, _: str, count: int) -> Iterator[Check]:
    """From every root in turn."""
    inputs = seat.inputs(count * seat.size, dtype)
    for root in range(seat.size):
        parts = inputs[root].tensor_split(seat.size)
        output = torch.empty(count, dtype=dtype)
        given = [seat.copy_of(part) for part in parts] if seat.rank == root else None
        seat.wait(dist.scatter(output, given, group_src=root, **seat.options()))
        yield f"part from root {root}", output, parts[seat.rank]


def barrier(seat: Seat, *_: object) -> Iterator[Check]:
    """Returns, on every rank; what it promises about order needs a clock and is tested elsewhere."""
    seat.wait(dist.barrier(**seat.options()))
    yield "return", torch.ones(1), torch.ones(1)
