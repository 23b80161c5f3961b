"""Collectives that devices run: the bits of the CPU's, in pieces, of tensors of any layout."""

from __future__ import annotations

import exchanges
import pytest
import torch
import torch.distributed as dist
from native import WINDOW_BYTES, arrive, bits, described, device_for
from ranks import HERE
from stand_in import backend_of


def differences(library: str, executor: str, whole: bool = False) -> tuple[str, list[str]]:
    """On a rank: how tensors of the device travel, and which collectives have other bits there than on the CPU."""
    gpu, group = arrive(library, executor)
    wrong = []
    for exchange, dtype, size in exchanges.combinations(whole):
        on_host = exchange(group, lambda tensor: tensor.clone(), dtype, size)
        on_device = exchange(group, gpu.put, dtype, size)
        if [bits(tensor) for tensor in on_host] != [bits(tensor) for tensor in on_device]:
            wrong.append(f"{exchange.__name__} {dtype} x {size}")
    return described(group), wrong


def without_pinned_memory(library: str, executor: str) -> int:
    """On a rank: host memory that collectives on the device have pinned after the first."""
    gpu, group = arrive(library, executor)
    tensor = gpu.put(torch.ones(50_000))
    dist.all_reduce(tensor, group=group)
    before = gpu.pinned_bytes()
    for _ in range(3):
        dist.all_reduce(tensor, group=group)
        dist.broadcast(tensor, 0, group=group)
    return gpu.pinned_bytes() - before


def any_layout(library: str, executor: str) -> list[bool]:
    """On a rank: columns, slices inside a pack, an output on its own input."""
    gpu, group = arrive(library, executor)
    results = []
    for cut in (lambda t: t.t(), lambda t: t[:, ::3], lambda t: t.view(-1)[3:1001], lambda t: t.view(-1)[1:2]):
        both = [put(exchanges.mine(4000, torch.float32).view(40, 100)) for put in (torch.clone, gpu.put)]
        for whole in both:
            dist.all_reduce(cut(whole), group=group)
        results.append(bits(both[0]) == bits(both[1]))
    wholes = [put(exchanges.mine(1200 * HERE.size, torch.float32)) for put in (torch.clone, gpu.put)]
    for whole in wholes:
        dist.reduce_scatter_tensor(whole.chunk(HERE.size)[HERE.rank], whole, group=group)
        dist.all_gather_into_tensor(whole, whole.chunk(HERE.size)[HERE.rank], group=group)
    return [*results, bits(wholes[0]) == bits(wholes[1])]


def coalesced(library: str, executor: str) -> list[bool]:
    """On a rank: several tensors in one call."""
    gpu, group = arrive(library, executor)
    kept = []
    for put in (torch.clone, gpu.put):
        tensors = [put(exchanges.mine(count, torch.float32)) for count in (5, 4099, 1)]
        options = dist.AllreduceCoalescedOptions()
        group.allreduce_coalesced(tensors, options).wait()
        kept.append([bits(tensor) for tensor in tensors])
    return [a == b for a, b in zip(*kept, strict=True)]


def barriers(library: str, executor: str) -> list[bool]:
    """On a rank: a barrier for the device is over when what was called before it is, waited for or not."""
    gpu, group = arrive(library, executor)
    tensor = gpu.put(torch.ones(1000))
    dist.all_reduce(tensor, group=group)
    options = dist.BarrierOptions()
    options.device = device_for(executor)
    with gpu.stream(1):
        gpu.hold(1)
        work = dist.all_reduce(tensor, group=group, async_op=True)
    barrier = backend_of(group).barrier(options)
    dist.barrier()
    early = [barrier.is_completed(), work.is_completed()]
    gpu.go(1)
    barrier.wait()
    return [*early, barrier.is_completed(), work.is_completed()]


@pytest.mark.parametrize(
    ("size", "whole"), [(1, True), (3, False), *(pytest.param(size, True, marks=pytest.mark.long) for size in (2, 4))]
)
def test_the_bits_are_the_cpus(world_of, stand_in, executor, size, whole):
    world = world_of(size, window_bytes=WINDOW_BYTES)
    for text, wrong in world.run(differences, stand_in, executor, whole):
        assert wrong == []
        assert text.startswith(f"tensors on privateuseone:{0 if executor == 'STREAM' else ''}")
        assert executor in text or size == 1


def test_nothing_is_pinned(native_pair, stand_in, executor):
    assert native_pair.run(without_pinned_memory, stand_in, executor) == [0, 0]


def test_tensors_of_any_layout(native_pair, stand_in, executor):
    assert native_pair.run(any_layout, stand_in, executor) == [[True] * 5] * 2


def test_several_in_one_call(native_pair, stand_in, executor):
    assert native_pair.run(coalesced, stand_in, executor) == [[True] * 3] * 2


def test_a_barrier_waits_for_what_nobody_has_waited_for(native_pair, stand_in, executor):
    assert native_pair.run(barriers, stand_in, executor) == [[False, False, True, True]] * 2
