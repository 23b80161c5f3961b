"""Sums that travel encoded between devices that share no memory: the bits of the CPU's with the same wire type."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

import exchanges
import pytest
import ringdp
import torch
import torch.distributed as dist
from native import arrive, bits, described
from ranks import HERE
from stand_in import BACKEND
from test_native_lane import check_end_by_death, hang
from test_nccl_ranks import APART

WIRES = ["bf16", "fp16", "fp8", "int8"]
BYTES = {"bf16": 512, "fp16": 512, "fp8": 260, "int8": 260}  # of 256 elements
# Nothing, less than a block, blocks and a pack that is cut.
SIZES = [0, 1, 255, 1031]
SEVERAL_PIECES = {exchanges.summed: 200_003, exchanges.scattered: 100_003}


def group_of(wire: str) -> dist.ProcessGroup:
    """All ranks, for tensors of the CPU and of the device."""
    options = ringdp.Options(wire=wire)
    return dist.new_group(range(HERE.size), backend=BACKEND, pg_options=options, timeout=timedelta(seconds=60))


def strange(group: dist.ProcessGroup, put: exchanges.Put, dtype: torch.dtype, count: int) -> list[torch.Tensor]:
    """Infinities, NaN, zeros of both signs, blocks of whole numbers, of huge numbers and of subnormal ones."""
    numbers = exchanges.mine(count, torch.float64)
    blocks = list(numbers.split(256))
    blocks[0].mul_(1e-42)
    blocks[1].round_().clamp_(-100, 100)
    blocks[2].mul_(1e34)
    blocks[3][:] = -0.0
    blocks[4][7] = float("inf") if HERE.rank else float("-inf")
    blocks[5][9] = float("nan")
    tensor = put(numbers.to(dtype))
    dist.all_reduce(tensor, group=group)
    return [tensor]


def cases() -> Iterator[tuple[exchanges.Exchange, torch.dtype, int]]:
    """Every size of float32, and one of all other types."""
    for exchange, large in SEVERAL_PIECES.items():
        for size in (*SIZES, large):
            yield exchange, torch.float32, size
    for dtype in exchanges.MEANS:
        yield exchanges.averaged, dtype, 2051
        yield exchanges.scattered, dtype, 517
        yield exchanges.uneven, dtype, 700
        yield strange, dtype, 1600
    yield exchanges.reduced, torch.float32, 300
    yield exchanges.summed, torch.int32, 300
    yield exchanges.staged, torch.float32, 300


def differences(library: str) -> list[str]:
    """On a rank: which sums have other bits on the device than on the CPU, by wire type; and what is said of them."""
    gpu, _ = arrive(library, "NCCL")
    wrong = []
    for wire in WIRES:
        group = group_of(wire)
        for exchange, dtype, size in cases():
            on_host = exchange(group, torch.clone, dtype, size)
            on_device = exchange(group, gpu.put, dtype, size)
            if [bits(tensor) for tensor in on_host] != [bits(tensor) for tensor in on_device]:
                wrong.append(f"{wire}: {exchange.__name__} {dtype} x {size}")
        said = f"wider floats travel as {wire}: {BYTES[wire]} bytes for 256 elements"
        if said not in described(group):
            wrong.append(f"{wire}: {described(group)}")
        dist.destroy_process_group(group)
    return wrong


def lossy(library: str) -> bool:
    """On a rank: whether a sum on the device has other bits with a wire type than without."""
    gpu, plain = arrive(library, "NCCL")
    sums = []
    for group in (plain, group_of("fp8")):
        sums += exchanges.summed(group, gpu.put, torch.float32, 1000)
    return bits(sums[0]) != bits(sums[1])


def where_nothing_is_on_a_wire(library: str) -> tuple[bool, str]:
    """On a rank of one host: whether a sum has the CPU's bits there, which has shared memory; and what is said of it."""
    gpu, _ = arrive(library, "NCCL")
    group = group_of("fp8")
    sums = [exchanges.summed(group, put, torch.float32, 1000)[0] for put in (torch.clone, gpu.put)]
    return bits(sums[0]) == bits(sums[1]), described(group)


@pytest.mark.parametrize("size", [3, *(pytest.param(size, marks=pytest.mark.long) for size in (2, 4))])
def test_devices_give_the_bits_of_the_cpu(world_of, stand_in, size):
    assert world_of(size, **APART).run(differences, stand_in) == [[]] * size


def test_devices_of_one_host_encode_no_more_than_the_cpu(world_of, stand_in):
    for same, text in world_of(2, heap_bytes=0, window_bytes=1 << 20).run(where_nothing_is_on_a_wire, stand_in):
        assert same
        assert "NCCL" in text and "travel as fp8" not in text


def test_a_wire_type_is_seen_in_the_bits(world_of, stand_in):
    assert world_of(2, **APART).run(lossy, stand_in) == [True, True]


def test_a_rank_that_dies_is_named_and_lets_the_device_go(run_on_fresh_ranks, stand_in):
    world = run_on_fresh_ranks(2, **APART, wire="fp8")
    world.join()
    assert world.run(hang, stand_in, "NCCL", 60.0) == [True, True]
    check_end_by_death(world)
