"""The calls of a self-test, each made by every rank in its rank context, with what to compare afterwards.

Collectives that move elements, collectives that compute, and calls in which each pair of ranks has its own message.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

import ringdp
from ringdp.selftest.oracle import fold, reduce_op, values

# What was looked at, what it holds, what it must hold.
Check = tuple[str, Tensor, Tensor]


@dataclass(frozen=True)
class RankContext:
    """One rank of a group: the inputs of all ranks, and the form in which this one makes its calls.

    `rank` and `size` are the group's; `group` None is the default group; `label` chooses the inputs.

    `shared`: this rank's inputs lie in shared memory, see `ringdp.empty`; other ranks may do otherwise.
    """

    rank: int
    size: int
    group: dist.ProcessGroup | None = None
    label: str = ""
    asynchronous: bool = False
    shared: bool = False

    def inputs(self, count: int, dtype: torch.dtype, part: str = "") -> list[Tensor]:
        """The inputs of all ranks, by rank."""
        return [values(self.label + part, rank, count, dtype) for rank in range(self.size)]

    def copy_of(self, tensor: Tensor) -> Tensor:
        """What a call may be given for `tensor`."""
        if not self.shared:
            return tensor.clone()
        return ringdp.empty(tensor.shape, dtype=tensor.dtype, group=self.group, fallback=True).copy_(tensor)

    def options(self) -> dict[str, Any]:
        """Keyword arguments of every collective."""
        return {"group": self.group, "async_op": self.asynchronous}

    def wait(self, work: Any) -> None:
        """Ends an asynchronous call; None is what a synchronous one returned."""
        if work is not None:
            work.wait()


# (context, dtype, reduce op or "", count): makes the calls and yields what to check.
Call = Callable[[RankContext, torch.dtype, str, int], Iterator[Check]]


def broadcast(context: RankContext, dtype: torch.dtype, _: str, count: int) -> Iterator[Check]:
    """From every root in turn."""
    inputs = context.inputs(count, dtype)
    for root in range(context.size):
        mine = context.copy_of(inputs[context.rank])
        context.wait(dist.broadcast(mine, group_src=root, **context.options()))
        yield f"result from root {root}", mine, inputs[root]


def all_gather(context: RankContext, dtype: torch.dtype, _: str, count: int) -> Iterator[Check]:
    """Into a list of equal parts."""
    yield from _gather_parts(context, dtype, [count] * context.size)


def all_gather_uneven(context: RankContext, dtype: torch.dtype, _: str, count: int) -> Iterator[Check]:
    """Into a list of parts of different sizes."""
    yield from _gather_parts(context, dtype, [count + rank for rank in range(context.size)])


def _gather_parts(context: RankContext, dtype: torch.dtype, sizes: list[int]) -> Iterator[Check]:
    inputs = [context.inputs(size, dtype)[rank] for rank, size in enumerate(sizes)]
    outputs = [torch.empty(size, dtype=dtype) for size in sizes]
    context.wait(dist.all_gather(outputs, context.copy_of(inputs[context.rank]), **context.options()))
    for rank, output in enumerate(outputs):
        yield f"part of rank {rank}", output, inputs[rank]


def all_gather_into_tensor(context: RankContext, dtype: torch.dtype, _: str, count: int) -> Iterator[Check]:
    """Into one flat tensor."""
    inputs = context.inputs(count, dtype)
    output = torch.empty(count * context.size, dtype=dtype)
    context.wait(dist.all_gather_into_tensor(output, context.copy_of(inputs[context.rank]), **context.options()))
    yield "result", output, torch.cat(inputs)


def all_gather_coalesced(context: RankContext, dtype: torch.dtype, _: str, count: int) -> Iterator[Check]:
    """Two flat tensors in one call."""
    pair = [context.inputs(count, dtype, "first"), context.inputs(count + 3, dtype, "second")]
    outputs = [torch.empty(len(inputs[0]) * context.size, dtype=dtype) for inputs in pair]
    with dist._coalescing_manager(context.group, async_ops=context.asynchronous) as bracket:
        for output, inputs in zip(outputs, pair, strict=True):
            dist.all_gather_into_tensor(output, context.copy_of(inputs[context.rank]), group=context.group)
    if context.asynchronous:
        bracket.wait()
    for which, (output, inputs) in enumerate(zip(outputs, pair, strict=True)):
        yield f"tensor {which}", output, torch.cat(inputs)


def gather(context: RankContext, dtype: torch.dtype, _: str, count: int) -> Iterator[Check]:
    """To every root in turn."""
    inputs = context.inputs(count, dtype)
    for root in range(context.size):
        outputs = [torch.empty(count, dtype=dtype) for _ in inputs] if context.rank == root else None
        context.wait(dist.gather(context.copy_of(inputs[context.rank]), outputs, group_dst=root, **context.options()))
        for rank, output in enumerate(outputs or []):
            yield f"part of rank {rank} on root {root}", output, inputs[rank]


def scatter(context: RankContext, dtype: torch.dtype, _: str, count: int) -> Iterator[Check]:
    """From every root in turn."""
    inputs = context.inputs(count * context.size, dtype)
    for root in range(context.size):
        parts = inputs[root].tensor_split(context.size)
        output = torch.empty(count, dtype=dtype)
        given = [context.copy_of(part) for part in parts] if context.rank == root else None
        context.wait(dist.scatter(output, given, group_src=root, **context.options()))
        yield f"part from root {root}", output, parts[context.rank]


def barrier(context: RankContext, *_: object) -> Iterator[Check]:
    """Returns, on every rank; what it promises about order needs a clock and is tested elsewhere."""
    context.wait(dist.barrier(**context.options()))
    yield "return", torch.ones(1), torch.ones(1)


def all_reduce(context: RankContext, dtype: torch.dtype, reduce: str, count: int) -> Iterator[Check]:
    """In place, on every rank."""
    inputs = context.inputs(count, dtype)
    mine = context.copy_of(inputs[context.rank])
    context.wait(dist.all_reduce(mine, op=reduce_op(reduce, context.rank), **context.options()))
    yield "result", mine, fold(inputs, reduce)


def reduce_to_each(context: RankContext, dtype: torch.dtype, reduce: str, count: int) -> Iterator[Check]:
    """To every root in turn; only the root's result is defined."""
    inputs = context.inputs(count, dtype)
    for root in range(context.size):
        mine = context.copy_of(inputs[context.rank])
        context.wait(dist.reduce(mine, group_dst=root, op=reduce_op(reduce, context.rank), **context.options()))
        if context.rank == root:
            yield f"result on root {root}", mine, fold(inputs, reduce)


def reduce_scatter(context: RankContext, dtype: torch.dtype, reduce: str, count: int) -> Iterator[Check]:
    """A list of equal parts."""
    yield from _scatter_parts(context, dtype, reduce, [count] * context.size)


def reduce_scatter_uneven(context: RankContext, dtype: torch.dtype, reduce: str, count: int) -> Iterator[Check]:
    """A list of parts of different sizes."""
    yield from _scatter_parts(context, dtype, reduce, [count + rank for rank in range(context.size)])


def _scatter_parts(context: RankContext, dtype: torch.dtype, reduce: str, sizes: list[int]) -> Iterator[Check]:
    inputs = context.inputs(sum(sizes), dtype)
    given = context.copy_of(inputs[context.rank])
    output = torch.empty(sizes[context.rank], dtype=dtype)
    operation = reduce_op(reduce, context.rank)
    context.wait(dist.reduce_scatter(output, list(given.split(sizes)), op=operation, **context.options()))
    yield "result", output, fold(inputs, reduce).split(sizes)[context.rank]
    yield "input, which must stay", given, inputs[context.rank]


def reduce_scatter_tensor(context: RankContext, dtype: torch.dtype, reduce: str, count: int) -> Iterator[Check]:
    """One flat tensor."""
    inputs = context.inputs(count * context.size, dtype)
    output = torch.empty(count, dtype=dtype)
    operation = reduce_op(reduce, context.rank)
    context.wait(
        dist.reduce_scatter_tensor(output, context.copy_of(inputs[context.rank]), op=operation, **context.options())
    )
    yield "result", output, fold(inputs, reduce)[context.rank * count :][:count]


def all_reduce_coalesced(context: RankContext, dtype: torch.dtype, reduce: str, count: int) -> Iterator[Check]:
    """Two tensors in one call."""
    pair = [context.inputs(count, dtype, "first"), context.inputs(count + 3, dtype, "second")]
    mine = [context.copy_of(inputs[context.rank]) for inputs in pair]
    operation = reduce_op(reduce, context.rank)
    with dist._coalescing_manager(context.group, async_ops=context.asynchronous) as bracket:
        for tensor in mine:
            dist.all_reduce(tensor, op=operation, group=context.group)
    if context.asynchronous:
        bracket.wait()
    for which, (tensor, inputs) in enumerate(zip(mine, pair, strict=True)):
        yield f"tensor {which}", tensor, fold(inputs, reduce)


def reduce_scatter_coalesced(context: RankContext, dtype: torch.dtype, reduce: str, count: int) -> Iterator[Check]:
    """Two flat tensors in one call."""
    counts = [count, count + 3]
    pair = [context.inputs(n * context.size, dtype, str(n)) for n in counts]
    outputs = [torch.empty(n, dtype=dtype) for n in counts]
    operation = reduce_op(reduce, context.rank)
    with dist._coalescing_manager(context.group, async_ops=context.asynchronous) as bracket:
        for output, inputs in zip(outputs, pair, strict=True):
            dist.reduce_scatter_tensor(output, context.copy_of(inputs[context.rank]), op=operation, group=context.group)
    if context.asynchronous:
        bracket.wait()
    for n, output, inputs in zip(counts, outputs, pair, strict=True):
        yield f"output of {n}", output, fold(inputs, reduce)[context.rank * n :][:n]


def _messages(context: RankContext, dtype: torch.dtype, count: int, growth: int) -> list[list[Tensor]]:
    """messages[i][j] goes from rank i to rank j; it has count + growth * (i + 2j) elements."""
    sizes = [[count + growth * (i + 2 * j) for j in range(context.size)] for i in range(context.size)]
    return [list(context.inputs(sum(row), dtype)[i].split(row)) for i, row in enumerate(sizes)]


def all_to_all(context: RankContext, dtype: torch.dtype, _: str, count: int) -> Iterator[Check]:
    """Lists of messages of different sizes."""
    messages = _messages(context, dtype, count, 1)
    outputs = [torch.empty_like(row[context.rank]) for row in messages]
    given = [message.clone() for message in messages[context.rank]]
    context.wait(dist.all_to_all(outputs, given, **context.options()))
    for rank, output in enumerate(outputs):
        yield f"message of rank {rank}", output, messages[rank][context.rank]


def all_to_all_single(context: RankContext, dtype: torch.dtype, _: str, count: int) -> Iterator[Check]:
    """One flat tensor, equal parts."""
    messages = _messages(context, dtype, count, 0)
    output = torch.empty(count * context.size, dtype=dtype)
    context.wait(dist.all_to_all_single(output, torch.cat(messages[context.rank]), **context.options()))
    yield "result", output, torch.cat([row[context.rank] for row in messages])


def all_to_all_splits(context: RankContext, dtype: torch.dtype, _: str, count: int) -> Iterator[Check]:
    """One flat tensor with split sizes."""
    messages = _messages(context, dtype, count, 1)
    coming = [len(row[context.rank]) for row in messages]
    going = [len(message) for message in messages[context.rank]]
    output = torch.empty(sum(coming), dtype=dtype)
    given = torch.cat(messages[context.rank])
    context.wait(dist.all_to_all_single(output, given, coming, going, **context.options()))
    yield "result", output, torch.cat([row[context.rank] for row in messages])


def send_recv(context: RankContext, dtype: torch.dtype, _: str, count: int) -> Iterator[Check]:
    """Round the ring: every rank sends to the next rank and receives from the one before."""
    inputs = context.inputs(count, dtype)
    after, before = (context.rank + 1) % context.size, (context.rank - 1) % context.size
    output = torch.empty(count, dtype=dtype)
    sending = dist.isend(inputs[context.rank].clone(), group_dst=after, group=context.group)
    if context.asynchronous:
        context.wait(dist.irecv(output, group_src=before, group=context.group))
    else:
        dist.recv(output, group_src=before, group=context.group)
    context.wait(sending)
    yield f"message of rank {before}", output, inputs[before]


def batch_isend_irecv(context: RankContext, dtype: torch.dtype, _: str, count: int) -> Iterator[Check]:
    """The same in one batch."""
    inputs = context.inputs(count, dtype)
    after, before = (context.rank + 1) % context.size, (context.rank - 1) % context.size
    output = torch.empty(count, dtype=dtype)
    batch = [
        dist.P2POp(dist.isend, inputs[context.rank].clone(), group_peer=after, group=context.group),
        dist.P2POp(dist.irecv, output, group_peer=before, group=context.group),
    ]
    for work in dist.batch_isend_irecv(batch):
        work.wait()
    yield f"message of rank {before}", output, inputs[before]
