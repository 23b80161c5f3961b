"""Collectives of torch.distributed on CUDA tensors of ranks that share one GPU: the bits of the serial fold."""

from __future__ import annotations

from collections.abc import Sequence

import one_gpu as gpu
import pytest
import torch
import torch.distributed as dist
from oracle import COMMON, FLOAT8, NUMBERS, bytes_of, fold, ops_of, values
from ranks import HERE

gpu.require()
SIZES = [0, 1, 4099, 300_001]


def put(tensor: torch.Tensor, device: str, shift: int = 0) -> torch.Tensor:
    """A copy on the device; with a shift it does not start at a multiple of 16 bytes."""
    room = torch.empty(tensor.numel() + shift, dtype=tensor.dtype, device=device)
    room[shift:].copy_(tensor)
    return room[shift:].view(tensor.shape)


def inputs_of(label: str, count: int, dtype: torch.dtype) -> list[torch.Tensor]:
    return [values(label, rank, count, dtype) for rank in range(HERE.size)]


def differs(found: torch.Tensor, right: torch.Tensor) -> bool:
    return bytes_of(found.cpu()) != bytes_of(right)


def reduced(device: str, dtype: torch.dtype, sizes: list[int]) -> list[str]:
    """On a rank: every all_reduce that was wrong here."""
    group, wrong = gpu.group(), []
    for op in ops_of(dtype):
        for count in sizes:
            for shift in (0, 1):
                inputs = inputs_of(op, count, dtype)
                tensor = put(inputs[HERE.rank], device, shift)
                dist.all_reduce(tensor, op=getattr(dist.ReduceOp, op), group=group)
                if differs(tensor, fold(inputs, op)):
                    wrong.append(f"{op} of {count} {dtype}, shifted by {shift}")
    return wrong


def moved(device: str, dtype: torch.dtype, count: int) -> list[str]:
    """On a rank: every other collective that was wrong here."""
    n, me, group = HERE.size, HERE.rank, gpu.group()
    parts, wholes = inputs_of("part", count, dtype), inputs_of("whole", n * count, dtype)
    whole, part = put(wholes[me], device, 1), put(parts[me], device, 1)
    gathered, swapped, sent = (torch.empty_like(whole) for _ in range(3))
    dist.all_gather_into_tensor(gathered, part, group=group)
    dist.all_to_all_single(swapped, whole, group=group)
    sent.copy_(whole)
    dist.broadcast(sent, src=n - 1, group=group)
    listed = [torch.empty_like(part) for _ in range(n)]
    dist.all_gather(listed, part, group=group)
    results = {
        "all_gather": (gathered, torch.cat(parts)),
        "all_gather of a list": (torch.cat(listed), torch.cat(parts)),
        "all_to_all": (swapped, torch.cat([one.chunk(n)[me] for one in wholes])),
        "broadcast": (sent, wholes[n - 1]),
    }
    if dtype not in FLOAT8:
        scattered = torch.empty_like(part)
        dist.reduce_scatter_tensor(scattered, whole, group=group)
        results["reduce_scatter"] = (scattered, fold([one.chunk(n)[me] for one in wholes], "SUM"))
        target = part.clone() if me == 0 else part
        dist.reduce(target, dst=0, group=group)
        if me == 0:
            results["reduce"] = (target, fold(parts, "SUM"))
    return [f"{name} of {count} {dtype}" for name, (found, right) in results.items() if differs(found, right)]


def in_lists(device: str, count: int) -> list[str]:
    """On a rank: every collective of a list that was wrong here. Each tensor has memory of its own, and where the next
    one's follows it, an allocation may end between them.
    """
    n, me, group = HERE.size, HERE.rank, gpu.group()
    wholes = inputs_of("lists", n * count, torch.float32)

    def apart(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        rooms = sorted((torch.empty(count, device=device) for _ in range(n)), key=torch.Tensor.data_ptr)
        for room, tensor in zip(rooms, tensors, strict=True):
            room.copy_(tensor)
        return rooms

    gathered, at_root, mine = (
        apart(one) for one in ([torch.zeros(count)] * n, [torch.zeros(count)] * n, wholes[me].chunk(n))
    )
    part, summed = (torch.empty(count, device=device) for _ in range(2))
    dist.all_gather(gathered, mine[0], group=group)
    dist.gather(mine[0], at_root if me == 0 else None, 0, group=group)
    dist.scatter(part, mine if me == 0 else None, 0, group=group)
    dist.reduce_scatter(summed, mine, group=group)
    firsts = torch.cat([one.chunk(n)[0] for one in wholes])
    results = {
        "all_gather": (torch.cat(gathered), firsts),
        "scatter": (part, wholes[0].chunk(n)[me]),
        "reduce_scatter": (summed, fold([one.chunk(n)[me] for one in wholes], "SUM")),
    }
    if me == 0:
        results["gather"] = (torch.cat(at_root), firsts)
    return [f"{name} of {n} x {count}" for name, (found, right) in results.items() if differs(found, right)]


def messages(device: str, count: int) -> bool:
    """On a rank: what came round a ring of sends is the neighbour's."""
    group, inputs = gpu.group(), inputs_of("message", count, torch.float32)
    got = put(torch.zeros(count), device)
    work = dist.batch_isend_irecv(
        [
            dist.P2POp(dist.isend, put(inputs[HERE.rank], device), (HERE.rank + 1) % HERE.size, group),
            dist.P2POp(dist.irecv, got, (HERE.rank - 1) % HERE.size, group),
        ]
    )
    for one in work:
        one.wait()
    return not differs(got, inputs[(HERE.rank - 1) % HERE.size])


@pytest.mark.parametrize("dtype", NUMBERS, ids=gpu.name_of)
def test_every_reduction_of_every_dtype(world_of, dtype):
    assert world_of(2).run(reduced, gpu.DEVICE, dtype, [1, 4099]) == [[]] * 2


@pytest.mark.parametrize("dtype", COMMON, ids=gpu.name_of)
@pytest.mark.parametrize("world", gpu.WORLDS)
def test_reductions_of_every_size_on_any_number_of_ranks(world_of, world, dtype):
    assert world_of(world).run(reduced, gpu.DEVICE, dtype, SIZES) == [[]] * world


@pytest.mark.parametrize("dtype", [*COMMON, FLOAT8[0]], ids=gpu.name_of)
@pytest.mark.parametrize("world", gpu.WORLDS)
def test_moves(world_of, world, dtype):
    for count in (1, 4099):
        assert world_of(world).run(moved, gpu.DEVICE, dtype, count) == [[]] * world


@pytest.mark.parametrize(("world", "count"), [(4, 1 << 18), (2, 10 << 18)], ids=["4-1MiB", "2-10MiB"])
def test_lists_of_tensors_with_memory_of_their_own(world_of, world, count):
    assert world_of(world).run(in_lists, gpu.DEVICE, count) == [[]] * world


@pytest.mark.parametrize("count", [1, 300_001])
def test_messages(world_of, count):
    assert world_of(4).run(messages, gpu.DEVICE, count) == [True] * 4
