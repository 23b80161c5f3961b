"""Which tensors calls take, and the memory that they are called with."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from oracle import same_bits, values
from ranks import HERE, error_of, on_ranks
from stand_in import TYPE, backend_of, here
from torch import Tensor


def ramp(rank: int) -> torch.Tensor:
    return torch.arange(12.0).reshape(3, 4) + 100 * rank


def total() -> torch.Tensor:
    return sum(ramp(rank) for rank in range(HERE.size))


def buffers(count: int) -> list[torch.Tensor]:
    return [torch.ones(count) for _ in range(HERE.size)]


def three_lists(count: int) -> list[torch.Tensor] | None:
    return buffers(count) if HERE.rank == 0 else None


def split_six(received: list[int]) -> None:
    dist.all_to_all_single(torch.ones(6), torch.ones(6), received, [2, 2, 2])


def backend() -> Any:
    """What torch's own checks do not stand before."""
    return dist.group.WORLD._get_backend(torch.device("cpu"))


def not_at_the_root(options: Any) -> Any:
    options.rootRank = (HERE.rank + 1) % HERE.size
    return options


def upright() -> torch.Tensor:
    return torch.ones(2, 3).t()


# what is called -> what the error must say
REFUSED = {
    "float4": (lambda: dist.broadcast(torch.empty(2, dtype=torch.float4_e2m1fn_x2), 0), "is not supported: use one of"),
    "sparse": (
        lambda: backend().broadcast([torch.eye(2).to_sparse()], dist.BroadcastOptions()),
        "sparse tensors are supported by all_reduce only",
    ),
    "two tensors": (lambda: backend().broadcast(buffers(1)[:2], dist.BroadcastOptions()), "one tensor per rank, got 2"),
    "two dtypes": (
        lambda: dist.all_gather_into_tensor(torch.ones(6).double(), torch.ones(2)),
        "one tensor is Float, another is Double",
    ),
    "pairs": (
        lambda: dist.group.WORLD.reduce_scatter_tensor_coalesced([torch.ones(1)], buffers(3)[:2]),
        "got 1 outputs for 2 inputs",
    ),
    "gather strides": (lambda: dist.all_gather_into_tensor(upright(), torch.ones(2)), "output must be contiguous"),
    "gather lists": (
        lambda: dist.group.WORLD.allgather_coalesced([[torch.ones(1)]] * 2, [torch.ones(1)]),
        "expected 3 lists (one per rank), got 2",
    ),
    "gather whole": (lambda: backend().gather_whole(torch.ones(4)), "multiple of 3 ranks, got 4 elements"),
    "gather whole strides": (lambda: backend().gather_whole(upright()), "expected a contiguous tensor"),
    "gather outputs": (
        lambda: backend().gather([buffers(1)], [torch.ones(1)], not_at_the_root(dist.GatherOptions())),
        "outputs are for the root only",
    ),
    "scatter inputs": (
        lambda: backend().scatter([torch.ones(1)], [buffers(1)], not_at_the_root(dist.ScatterOptions())),
        "inputs are for the root only",
    ),
    "recv source": (lambda: backend().recv([torch.ones(1)], -2, 0), "invalid source -2"),
    "all_to_all strides": (lambda: dist.all_to_all_single(upright(), torch.ones(6)), "output must be contiguous"),
    "all_to_all number": (lambda: dist.all_to_all_single(torch.tensor(1.0), torch.ones(6)), "no dimension to split"),
    "all_to_all splits": (
        lambda: dist.all_to_all_single(torch.ones(6), torch.ones(6), [3, 3], [2, 2, 2]),
        "output_split_sizes has 2 entries for 3 ranks",
    ),
    "float8": (lambda: dist.all_reduce(torch.ones(2).to(torch.float8_e5m2)), "SUM of float8_e5m2 is not supported"),
    "AVG of bool": (lambda: dist.all_reduce(torch.ones(2, dtype=torch.bool), dist.ReduceOp.AVG), "AVG of bool"),
    "expanded sum": (lambda: dist.all_reduce(torch.ones(1).expand(3)), "share memory"),
    "expanded part": (lambda: dist.scatter(torch.ones(1).expand(3), three_lists(3)), "share memory"),
    "expanded message": (lambda: dist.recv(torch.ones(1).expand(3), (HERE.rank + 1) % HERE.size), "share memory"),
    "sparse bool": (lambda: dist.all_reduce(torch.eye(2).bool().to_sparse()), "cannot add Bool"),
    "BAND": (lambda: dist.all_reduce(torch.ones(2), dist.ReduceOp.BAND), "BAND of float32"),
    "broadcast root": (lambda: dist.broadcast(torch.ones(2), HERE.size), "root"),
    "gather output": (lambda: dist.all_gather_into_tensor(torch.ones(5), torch.ones(2)), "5"),
    "gather list": (lambda: dist.all_gather(buffers(2)[1:], torch.ones(2)), "output tensors"),
    "gather sizes": (lambda: dist.all_gather(buffers(3), torch.ones(2)), "3 elements, expected 2"),
    "scatter input": (lambda: dist.reduce_scatter_tensor(torch.ones(2), torch.ones(5)), "5"),
    "scatter list": (lambda: dist.reduce_scatter(torch.ones(2), buffers(2)[1:]), "input tensors"),
    "scatter root": (lambda: dist.scatter(torch.ones(1), None, src=HERE.size), "rank"),
    "all_to_all list": (lambda: dist.all_to_all(buffers(1)[1:], buffers(1)), "output tensors"),
    "all_to_all rows": (lambda: dist.all_to_all_single(torch.ones(7), torch.ones(7)), "7 rows"),
    "all_to_all sum": (
        lambda: dist.all_to_all_single(torch.ones(6), torch.ones(6), [1, 2, 4], [2, 2, 2]),
        "add up to 7",
    ),
    "all_to_all split": (
        lambda: dist.all_to_all_single(torch.ones(6), torch.ones(6), [7, 1, -2], [2, 2, 2]),
        "negative",
    ),
}


@on_ranks(3, 3 + 6j)
def test_complex_sums_are_sums_of_pairs() -> complex:
    """Torch hands complex tensors over as pairs of reals."""
    tensor = torch.full((3,), 1 + 2j * HERE.rank)
    dist.all_reduce(tensor)
    return complex(tensor[-1])


@on_ranks(3, [True] * 2)
def test_conjugate_and_negative_views() -> list[bool]:
    """Lazily conjugated and negated views hold other bits than their elements; past torch's own handling."""
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    number = torch.full((3,), 1 + 2j * HERE.rank)
    summed, minus = number.clone().conj(), number.clone().conj().imag
    backend.allreduce([summed], dist.AllreduceOptions()).wait()
    backend.broadcast([minus], dist.BroadcastOptions()).wait()
    total = torch.full((3,), HERE.size - 2j * sum(range(HERE.size)))
    return [summed.is_conj() and torch.equal(summed, total), minus.is_neg() and torch.equal(minus, torch.zeros(3))]


@on_ranks(3, True)
def test_what_is_only_read_may_be_expanded() -> bool:
    """An expanded tensor can be sent, as nothing is written to it."""
    tensor = torch.ones(1).expand(3) if HERE.rank == 1 else torch.zeros(3)
    dist.broadcast(tensor, 1)
    gathered = torch.zeros(3 * HERE.size)
    dist.all_gather_into_tensor(gathered, torch.ones(1).expand(3))
    return bool((tensor == 1).all() and (gathered == 1).all())


@on_ranks(3, [True] * 6)
def test_any_strides() -> list[bool]:
    """Transposed, every other column, expanded into memory of its own, with a gradient."""
    transposed = ramp(HERE.rank).t()
    dist.all_reduce(transposed)
    memory = torch.zeros(3, 8)
    every_other = memory[:, ::2]
    every_other.copy_(ramp(HERE.rank))
    memory[:, 1::2] = -1
    dist.all_reduce(every_other)
    sent = ramp(HERE.rank).t()
    dist.broadcast(sent, HERE.size - 1)
    parameter = torch.nn.Parameter(ramp(HERE.rank))
    with torch.no_grad():
        dist.all_reduce(parameter)
    gathered = [torch.zeros(4, 3).t() for _ in range(HERE.size)]
    dist.all_gather(gathered, ramp(HERE.rank).t().contiguous().t())
    scattered = torch.zeros(4, 3).t()
    dist.reduce_scatter(scattered, [ramp(HERE.rank).t().contiguous().t() + part for part in range(HERE.size)])
    return [
        torch.equal(transposed, total().t()),
        torch.equal(every_other, total()) and bool((memory[:, 1::2] == -1).all()),
        torch.equal(sent, ramp(HERE.size - 1).t()),
        torch.equal(parameter, total()) and parameter.requires_grad,
        all(torch.equal(tensor, ramp(rank)) for rank, tensor in enumerate(gathered)),
        torch.equal(scattered, total() + HERE.size * HERE.rank),
    ]


@on_ranks(3, [True] * 5)
def test_overlapping_memory() -> list[bool]:
    """Outputs that share memory with inputs."""
    n, count = HERE.size, 1000
    mine = torch.arange(float(count)) + HERE.rank
    wanted = torch.cat([torch.arange(float(count)) + rank for rank in range(n)])
    in_place = torch.zeros(n * count)
    in_place[HERE.rank * count : (HERE.rank + 1) * count] = mine
    dist.all_gather_into_tensor(in_place, in_place[HERE.rank * count : (HERE.rank + 1) * count])
    slices = torch.zeros(n * count)
    dist.all_gather(list(slices.tensor_split(n)), mine)
    elsewhere = torch.zeros(n * count)
    next_rank = (HERE.rank + 1) % n  # the input lies where another rank's part arrives
    elsewhere[next_rank * count : (next_rank + 1) * count] = mine
    dist.all_gather_into_tensor(elsewhere, elsewhere[next_rank * count : (next_rank + 1) * count])
    own = wanted.clone()
    dist.reduce_scatter_tensor(own[HERE.rank * count : (HERE.rank + 1) * count], own)
    other = wanted.clone()
    dist.reduce_scatter_tensor(other[next_rank * count : (next_rank + 1) * count], other)
    part = n * wanted[HERE.rank * count : (HERE.rank + 1) * count]
    return [
        torch.equal(in_place, wanted),
        torch.equal(slices, wanted),
        torch.equal(elsewhere, wanted),
        torch.equal(own[HERE.rank * count : (HERE.rank + 1) * count], part),
        torch.equal(other[next_rank * count : (next_rank + 1) * count], part),
    ]


@pytest.mark.parametrize("name", REFUSED)
@on_ranks(3, transport="shm")
def test_what_is_not_supported_says_so_and_harms_nothing(name: str) -> None:
    call, wanted = REFUSED[name]
    said = error_of(call, kind=(RuntimeError, ValueError))
    assert wanted.lower() in said.lower(), said
    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    assert tensor == 3


Put = Callable[[Tensor], Tensor]
COUNT = 1031
DTYPES = [torch.float32, torch.bfloat16, torch.int64]


def mine(put: Put, dtype: torch.dtype, count: int = COUNT, label: str = "") -> Tensor:
    return put(values(label, HERE.rank, count, dtype))


def parts(put: Put, dtype: torch.dtype, count: int = COUNT) -> list[Tensor]:
    return [mine(put, dtype, count, f"part {rank}") for rank in range(HERE.size)]


def strided_call_memory(tensor: Tensor) -> Tensor:
    """Every second row of the transposed: elements neither in order nor dense."""
    return tensor[:1020].view(30, 34).t()[::2]


def reductions(put: Put, dtype: torch.dtype, group: dist.ProcessGroup) -> dict[str, list[Tensor]]:
    tensor, kept, product, view = mine(put, dtype), mine(put, dtype), mine(put, dtype), mine(put, dtype)
    dist.all_reduce(tensor, group=group)
    dist.reduce(kept, HERE.size - 1, group=group)
    dist.all_reduce(product, op=dist.ReduceOp.PRODUCT, group=group)
    dist.all_reduce(strided_call_memory(view), op=dist.ReduceOp.MAX, group=group)
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
    dist.broadcast(strided_call_memory(view), HERE.size - 1, group=group)
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


@on_ranks(2)
def test_tensors_of_two_places_are_refused(stand_in: str) -> None:
    """And one whose elements share memory."""
    gpu = here(stand_in)
    device, host = gpu.put(torch.ones(4)), torch.ones(4)
    shared = gpu.put(torch.ones(1)).expand(4)
    backend = backend_of(gpu.group)
    said = error_of(backend.alltoall, [device] * 2, [device, host])
    assert said.startswith("InvalidArgument: the tensors of one call are on privateuseone:0 and on cpu")
    assert "share memory" in error_of(lambda: dist.all_reduce(shared, group=gpu.group))
