"""The calls in which each pair of ranks has its own message: all_to_all in its forms, send and recv."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import Tensor

from ringdp.selftest.seat import Check, Seat


def _messages(seat: Seat, dtype: torch.dtype, count: int, growth: int) -> list[list[Tensor]]:
    """messages[i][j] goes from rank i to rank j; it has count + growth * (i + 2j) elements."""
    sizes = [[count + growth * (i + 2 * j) for j in range(seat.size)] for i in range(seat.size)]
    return [list(seat.inputs(sum(row), dtype)[i].split(row)) for i, row in enumerate(sizes)]


def all_to_all(seat: Seat, dtype: torch.dtype, _: str, count: int) -> Iterator[Check]:
    """Lists of messages of different sizes."""
    messages = _messages(seat, dtype, count, 1)
    outputs = [torch.empty_like(row[seat.rank]) for row in messages]
    given = [message.clone() for message in messages[seat.rank]]
    seat.wait(dist.all_to_all(outputs, given, **seat.options()))
    for rank, output in enumerate(outputs):
        yield f"message of rank {rank}", output, messages[rank][seat.rank]


def all_to_all_single(seat: Seat, dtype: torch.dtype, _: str, count: int) -> Iterator[Check]:
    """One flat tensor, equal parts."""
    messages = _messages(seat, dtype, count, 0)
    output = torch.empty(count * seat.size, dtype=dtype)
    seat.wait(dist.all_to_all_single(output, torch.cat(messages[seat.rank]), **seat.options()))
    yield "result", output, torch.cat([row[seat.rank] for row in messages])


def all_to_all_splits(seat: Seat, dtype: torch.dtype, _: str, count: int) -> Iterator[Check]:
    """One flat tensor with split sizes."""
    messages = _messages(seat, dtype, count, 1)
    coming = [len(row[seat.rank]) for row in messages]
    going = [len(message) for message in messages[seat.rank]]
    output = torch.empty(sum(coming), dtype=dtype)
    given = torch.cat(messages[seat.rank])
    seat.wait(dist.all_to_all_single(output, given, coming, going, **seat.options()))
    yield "result", output, torch.cat([row[seat.rank] for row in messages])


def send_recv(seat: Seat, dtype: torch.dtype, _: str, count: int) -> Iterator[Check]:
    """Round the ring: everyone sends to the next rank and receives from the one before."""
    inputs = seat.inputs(count, dtype)
    after, before = (seat.rank + 1) % seat.size, (seat.rank - 1) % seat.size
    output = torch.empty(count, dtype=dtype)
    sending = dist.isend(inputs[seat.rank].clone(), group_dst=after, group=seat.group)
    if seat.asynchronous:
        seat.wait(dist.irecv(output, group_src=before, group=seat.group))
    else:
        dist.recv(output, group_src=before, group=seat.group)
    seat.wait(sending)
    yield f"message of rank {before}", output, inputs[before]


def batch_isend_irecv(seat: Seat, dtype: torch.dtype, _: str, count: int) -> Iterator[Check]:
    """The same in one batch."""
    inputs = seat.inputs(count, dtype)
    after, before = (seat.rank + 1) % seat.size, (seat.rank - 1) % seat.size
    output = torch.empty(count, dtype=dtype)
    batch = [
        dist.P2POp(dist.isend, inputs[seat.rank].clone(), group_peer=after, group=seat.group),
        dist.P2POp(dist.irecv, output, group_peer=before, group=seat.group),
    ]
    for work in dist.batch_isend_irecv(batch):
        work.wait()
    yield f"message of rank {before}", output, inputs[before]
