"""Every collective on tensors of a device has the bits of the same one on the CPU, whatever the tensors' strides."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from oracle import same_bits, values
from ranks import HERE
from stand_in import TYPE, backend_of, error_of, here
from torch import Tensor

Put = Callable[[Tensor], Tensor]
COUNT = 1031
DTYPES = [torch.float32, torch.bfloat16, torch.int64]


def mine(put: Put, dtype: torch.dtype, count: int = COUNT, label: str = "") -> Tensor:
    return put(values(label, HERE.rank, count, dtype))


def parts(put: Put, dtype: torch.dtype, count: int = COUNT) -> list[Tensor]:
    return [mine(put, dtype, count, f"part {rank}") for rank in range(HERE.size)]


def strided(tensor: Tensor) -> Tensor:
    """Every second row of the transposed: elements neither in order nor dense."""
    return tensor[:1020].view(30, 34).t()[::2]


def reductions(put: Put, dtype: torch.dtype, group: dist.ProcessGroup) -> dict[str, list[Tensor]]:
    tensor, kept, product, view = mine(put, dtype), mine(put, dtype), mine(put, dtype), mine(put, dtype)
    dist.all_reduce(tensor, group=group)
    dist.reduce(kept, HERE.size - 1, group=group)
    dist.all_reduce(product, op=dist.ReduceOp.PRODUCT, group=group)
    dist.all_reduce(strided(view), op=dist.ReduceOp.MAX, group=group)
    many = [mine(put, dtype, count) for count in (3, 0, 500)]
    dist.all_reduce_coalesced(many, group=group)
    listed, flat, whole = put(torch.zeros(COUNT, dtype=dtype)), put(torch.zeros(COUNT, dtype=dtype)), parts(put, dtype)
    dist.reduce_scatter(listed, whole, group=group)
    dist.reduce_scatter_tensor(flat, mine(put, dtype, COUNT * HERE.size), group=group)
    in_place = mine(put, dtype, COUNT * HERE.size)
    dist.reduce_scatter_tensor(in_place.tensor_split(HERE.size)[HERE.rank], in_place, group=group)
    two = [put(torch.zeros(COUNT, dtype=dtype)) for _ in range(2)]
    group.reduce_scatter_tensor_coalesced(two, [mine(put, dtype, COUNT * HERE.size) for _ in two]).wait()
    alike = {"all_reduce": [tensor], "reduce": [kept], "product": [product], "strided": [view], "coalesced": many}
    return {**alike, "reduce_scatter": [listed, flat, in_place], "reduce_scatter_coalesced": two}


def scaled(put: Put, dtype: torch.dtype, group: dist.ProcessGroup) -> dict[str, list[Tensor]]:
    if not dtype.is_floating_point:
        return {}
    mean, divided, part = mine(put, dtype), mine(put, dtype), put(torch.zeros(COUNT, dtype=dtype))
    times = mine(put, dtype)
    dist.all_reduce(mean, op=dist.ReduceOp.AVG, group=group)
    dist.all_reduce(times, op=dist._make_nccl_premul_sum(0.3), group=group)
    backend_of(group).reduce_div(divided, 7.5).wait()
    backend_of(group).reduce_scatter_div(part, mine(put, dtype, COUNT * HERE.size), 3.0).wait()
    return {"avg": [mean], "premultiplied": [times], "reduce_div": [divided], "reduce_scatter_div": [part]}


def movements(put: Put, dtype: torch.dtype, group: dist.ProcessGroup) -> dict[str, list[Tensor]]:
    empty = [put(torch.zeros(COUNT, dtype=dtype)) for _ in range(HERE.size)]
    tensor, view = mine(put, dtype), mine(put, dtype)
    dist.broadcast(tensor, 0, group=group)
    dist.broadcast(strided(view), HERE.size - 1, group=group)
    dist.all_gather(empty, mine(put, dtype), group=group)
    flat = put(torch.zeros(COUNT * HERE.size, dtype=dtype))
    dist.all_gather_into_tensor(flat, mine(put, dtype), group=group)
    pair = [put(torch.zeros(COUNT * HERE.size, dtype=dtype)) for _ in range(2)]
    group.allgather_into_tensor_coalesced(pair, [mine(put, dtype) for _ in pair]).wait()
    lists = [[put(torch.zeros(count, dtype=dtype)) for count in (3, 500)] for _ in range(HERE.size)]
    dist.all_gather_coalesced(lists, [mine(put, dtype, count) for count in (3, 500)], group=group)
    root = HERE.rank == 0
    gathered = [put(torch.zeros(COUNT, dtype=dtype)) for _ in range(HERE.size)]
    dist.gather(mine(put, dtype), gathered if root else None, 0, group=group)
    part = put(torch.zeros(COUNT, dtype=dtype))
    dist.scatter(part, parts(put, dtype) if root else None, 0, group=group)
    found = {"broadcast": [tensor, view], "all_gather": [*empty, flat, *pair], "lists": lists[0] + lists[-1]}
    return {**found, "gather": gathered, "scatter": [part]}


def exchanges(put: Put, dtype: torch.dtype, group: dist.ProcessGroup) -> dict[str, list[Tensor]]:
    listed = [put(torch.zeros(COUNT, dtype=dtype)) for _ in range(HERE.size)]
    dist.all_to_all(listed, parts(put, dtype), group=group)
    flat = put(torch.zeros(COUNT * HERE.size, dtype=dtype))
    dist.all_to_all_single(flat, mine(put, dtype, COUNT * HERE.size), group=group)
    sends = [(HERE.rank + 1) * (peer + 1) for peer in range(HERE.size)]
    uneven = put(torch.zeros(sum(sends), dtype=dtype))  # symmetric: as much comes from a peer as goes to it
    dist.all_to_all_single(uneven, mine(put, dtype, sum(sends)), sends, sends, group=group)
    there, back = mine(put, dtype), put(torch.zeros(COUNT, dtype=dtype))
    after, before = (HERE.rank + 1) % HERE.size, (HERE.rank - 1) % HERE.size
    ring = [dist.P2POp(dist.isend, there, after, group=group), dist.P2POp(dist.irecv, back, before, group=group)]
    for work in dist.batch_isend_irecv(ring):
        work.wait()
    dist.barrier(group=group)
    return {"all_to_all": [*listed, flat, uneven], "messages": [back]}


def coalesced(put: Put, dtype: torch.dtype, group: dist.ProcessGroup) -> dict[str, list[Tensor]]:
    sums = [mine(put, dtype, count) for count in (5, 700)]
    flats = [put(torch.zeros(COUNT * HERE.size, dtype=dtype)) for _ in range(2)]
    with dist._coalescing_manager(group, device=sums[0].device, async_ops=True) as reduced:
        for tensor in sums:
            dist.all_reduce(tensor, group=group)
    with dist._coalescing_manager(group, device=sums[0].device, async_ops=True) as gathered:
        for flat in flats:
            dist.all_gather_into_tensor(flat, mine(put, dtype), group=group)
    reduced.wait()
    gathered.wait()
    return {"manager": [*sums, *flats]}


CALLS = (reductions, scaled, movements, exchanges, coalesced)


def differences(library: str) -> list[str]:
    """On a rank: what differs between the device and the CPU."""
    cells = itertools.product(CALLS, DTYPES)
    return [f"{what}: {calls.__name__} {dtype}" for calls, dtype in cells for what in differing(library, calls, dtype)]


def differing(library: str, calls: Callable[..., dict[str, list[Tensor]]], dtype: torch.dtype) -> list[str]:
    """On a rank: which results differ between the device and the CPU; every call comes once on each."""
    gpu = here(library)
    on_cpu = calls(torch.clone, dtype, gpu.group)
    on_device = calls(gpu.put, dtype, gpu.group)
    assert all(tensor.device.type == TYPE for tensors in on_device.values() for tensor in tensors)
    return [
        name
        for name, wanted in on_cpu.items()
        if not all(same_bits(a.cpu(), b) for a, b in zip(on_device[name], wanted, strict=True))
    ]


@pytest.mark.parametrize("way", [{"window_bytes": 0}, {}], ids=["staged", "native"])
@pytest.mark.parametrize("size", [2, 3])
def test_bits_of_the_cpu(world_of, stand_in, size, way):
    assert world_of(size, **way).run(differences, stand_in) == [[]] * size


def mixed(library: str) -> list[str]:
    """On a rank: calls with tensors of two places, and one whose elements share memory."""
    gpu = here(library)
    device, host = gpu.put(torch.ones(4)), torch.ones(4)
    shared = gpu.put(torch.ones(1)).expand(4)
    backend = backend_of(gpu.group)
    two = [device, host, host][: HERE.size]
    return [
        error_of(lambda: backend.alltoall([device] * HERE.size, two)),
        error_of(lambda: dist.all_reduce(shared, group=gpu.group)),
    ]


def test_tensors_of_two_places_are_refused(world_of, stand_in):
    for two, shared in world_of(2).run(mixed, stand_in):
        assert two.startswith("InvalidArgument: the tensors of one call are on privateuseone:0 and on cpu")
        assert "share memory" in shared
