"""Ranks that share no memory run collectives on their devices over NCCL: the bits of the CPU, and how they end."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import exchanges
import pytest
import ringdp
import torch
import torch.distributed as dist
from native import PATIENCE_S, arrive, bits, described
from ranks import HERE, World, values_of
from stand_in import BACKEND, NCCL_LIBRARY, TYPE, error_of, here
from test_device_queue import absent, callers_named, check_end_by_death, disagreeing, end, hang
from test_queued_call import differences

KEPT: dict[str, Any] = {}  # on a rank: between two calls of a test
APART = {"transport": "tcp", "window_bytes": 1 << 20}  # as on hosts of their own
DIRECT = {"algorithm": "direct"}
RING = {"algorithm": "ring"}
ROTATED = {"algorithm": "ring", "order": "rotated"}


def said(library: str, executor: str, odd: dict[str, str]) -> tuple[str, float]:
    """On a rank: what is said after the first collective, and its result. `odd`: of rank 1's environment."""
    if HERE.rank == 1:
        os.environ.update(odd)
    gpu, _ = arrive(library, executor)
    group = gpu.new_group(6.0)
    tensor = gpu.put(torch.ones(100))
    dist.all_reduce(tensor, group=group)
    return described(group), float(tensor.cpu()[-1])


def summed_otherwise(library: str) -> tuple[bool, bool, list[bytes]]:
    """On a rank: sums in another order: whether integers are exact, and floats near; the bits of the floats."""
    gpu, group = arrive(library, "NCCL")
    exact = near = True
    floats = []
    for dtype in (torch.int32, torch.float32, torch.bfloat16):
        tensors = [torch.arange(40_003).remainder(1009).mul(rank + 1).to(dtype) for rank in range(HERE.size)]
        tensor = gpu.put(tensors[HERE.rank])
        dist.all_reduce(tensor, group=group)
        want = torch.stack([one.double() for one in tensors]).sum(0)
        if dtype is torch.int32:
            exact &= bool(torch.equal(tensor.cpu().double(), want))
        else:
            near &= torch.allclose(tensor.cpu().double(), want, rtol=torch.finfo(dtype).eps)
            floats.append(bits(tensor))
    return exact, near, floats


def by_turns(library: str) -> list[float]:
    """On a rank: collectives of two groups, none of which is waited for before the next."""
    gpu, one = arrive(library, "NCCL")
    other = gpu.new_group()
    tensors = [gpu.put(torch.full((30_000,), float(k))) for k in range(6)]
    works = [dist.all_reduce(t, group=(one, other)[k % 2], async_op=True) for k, t in enumerate(tensors)]
    for work in works:
        work.wait()
    return [float(t.cpu()[-1]) for t in tensors]


@pytest.mark.parametrize(
    ("size", "settings", "whole"),
    [
        (3, DIRECT, False),
        (3, RING, False),
        pytest.param(2, {}, True, marks=pytest.mark.long),
        pytest.param(4, DIRECT, True, marks=pytest.mark.long),
        pytest.param(4, RING, True, marks=pytest.mark.long),
        pytest.param(2, ROTATED, True, marks=pytest.mark.long),
    ],
    ids=["3-direct", "3-ring", "2", "4-direct", "4-ring", "2-rotated"],
)
def test_devices_give_the_bits_of_the_cpu(world_of, stand_in, size, settings, whole):
    world = world_of(size, **APART, **settings)
    for rank, (text, wrong) in enumerate(world.run(differences, stand_in, "NCCL", whole)):
        assert text.startswith(f"tensors on privateuseone:{rank}: NCCL 2.29.0: ")
        assert wrong == []


def test_the_rotated_ring_has_one_result(world_of, stand_in):
    outcomes = world_of(3, **APART, **ROTATED).run(summed_otherwise, stand_in)
    for exact, near, floats in outcomes:
        assert exact and near
        assert floats == outcomes[0][2]


def test_two_groups_run_side_by_side(world_of, stand_in):
    for sums in world_of(2, **APART).run(by_turns, stand_in):
        assert sums == [2.0 * k for k in range(6)]


@pytest.mark.parametrize(
    ("executor", "odd", "why"),
    [
        ("NCCL", {"RINGDP_NCCL": "/nowhere/libnccl.so"}, "rank 1: no NCCL: "),
        ("STREAM", {}, "ranks 0 and 1 share a device, and NCCL wants one for each"),
        ("NCCL", {"STAND_IN_NCCL_REFUSES": "init"}, "rank 1: NCCL: ncclCommInitRank: unhandled system error"),
    ],
    ids=["absent", "one device", "refused"],
)
def test_where_nccl_cannot_all_ranks_know_why(run_on_fresh_ranks, stand_in, executor, odd, why):
    world = run_on_fresh_ranks(2, **APART)
    world.join()
    for text, total in world.run(said, stand_in, executor, odd):
        assert "collectives run on the host, through pinned memory: not all ranks share memory of one host; " in text
        assert why in text
        assert total == 2.0


def test_a_sum_whose_algorithm_has_no_plan_goes_through_the_host(world_of, stand_in):
    for text, total in world_of(2, **APART, algorithm="tree").run(said, stand_in, "NCCL", {}):
        assert "sums on the host, as algorithm=tree has no plan between hosts on devices" in text
        assert total == 2.0


@pytest.mark.parametrize("how", ["count", "op", "host"])
def test_ranks_that_disagree_are_named(world_of, stand_in, how):
    for error, later, void in world_of(2, **APART).run(disagreeing, stand_in, "NCCL", how):
        assert "Mismatch: " in error and callers_named(error) == {0, 1}
        assert "Mismatch: " in later
        assert void


def hanging(run_on_fresh_ranks, stand_in: str, timeout_s: float) -> World:
    """Two ranks, of which rank 0's device waits for rank 1's."""
    world = run_on_fresh_ranks(2, **APART)
    world.join()
    assert world.run(hang, stand_in, "NCCL", timeout_s) == [True, True]
    return world


def test_a_rank_that_dies_is_named_and_lets_the_device_go(run_on_fresh_ranks, stand_in):
    check_end_by_death(hanging(run_on_fresh_ranks, stand_in, 60.0))


def hang_on_a_later_device(library: str) -> bool:
    """On a rank that sets no current device: begins a sum, on a device that is not the first, and rank 1 hangs."""
    os.environ["STAND_IN_DEVICES"] = str(HERE.size + 1)
    os.environ["RINGDP_NCCL"] = str(Path(library).with_name(NCCL_LIBRARY))
    gpu = here(library)
    group = gpu.new_group(60.0)
    tensor = torch.ones(1000, device=torch.device(TYPE, HERE.rank + 1))
    dist.all_reduce(tensor, group=group)
    if HERE.rank == 1:
        gpu.functions.stand_in_use_device(HERE.rank + 1)
        gpu.hold()
    KEPT.update(groups=[group], work=dist.all_reduce(tensor, group=group, async_op=True))
    dist.barrier()
    return "NCCL 2.29.0" in described(group)


def contexts_after_the_end(library: str) -> tuple[str, set[int]]:
    """On rank 0, whose peer has died: the error, and where contexts are once the group is torn down."""
    error = error_of(lambda: KEPT["work"].wait(timedelta(seconds=PATIENCE_S)))
    dist.destroy_process_group(KEPT["groups"].pop())
    time.sleep(1.0)  # on threads of their own NCCL is aborted, and the group torn down
    return error, here(library).contexts()


def test_what_ends_nccl_makes_no_context(run_on_fresh_ranks, stand_in):
    world = run_on_fresh_ranks(2, **APART)
    world.join()
    assert world.run(hang_on_a_later_device, stand_in) == [True, True]
    world.kill(1)
    [(error, contexts)] = values_of(world.attempt(contexts_after_the_end, stand_in, ranks=[0]))
    assert error.startswith("PeerLost: rank 1 (pid ")
    assert contexts == {1}


def test_a_stopped_rank_is_named_in_the_timeout(run_on_fresh_ranks, stand_in):
    world = hanging(run_on_fresh_ranks, stand_in, 3.0)
    world.signal(1, signal.SIGSTOP)
    error, void = values_of(world.attempt(end, ranks=[0]))[0]
    world.signal(1, signal.SIGCONT)
    assert "Timeout: " in error and "rank 1 (pid" in error and "stopped" in error
    assert void


def test_who_does_not_call_is_a_timeout(world_of, stand_in):
    error, void = world_of(2, **APART).run(absent, stand_in, "NCCL")[0]
    assert "Timeout: " in error and "rank 1 (pid" in error
    assert void


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


def wire_differences(library: str) -> list[str]:
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
    """On a rank of one host: whether a sum has the CPU's bits on devices of shared memory, and what is said of it."""
    gpu, _ = arrive(library, "NCCL")
    group = group_of("fp8")
    sums = [exchanges.summed(group, put, torch.float32, 1000)[0] for put in (torch.clone, gpu.put)]
    return bits(sums[0]) == bits(sums[1]), described(group)


@pytest.mark.parametrize("size", [3, *(pytest.param(size, marks=pytest.mark.long) for size in (2, 4))])
def test_encoded_sums_have_the_bits_of_the_cpu(world_of, stand_in, size):
    assert world_of(size, **APART).run(wire_differences, stand_in) == [[]] * size


def test_devices_of_one_host_encode_no_more_than_the_cpu(world_of, stand_in):
    for same, text in world_of(2, heap_bytes=0, window_bytes=1 << 20).run(where_nothing_is_on_a_wire, stand_in):
        assert same
        assert "NCCL" in text and "travel as fp8" not in text


def test_a_wire_type_is_seen_in_the_bits(world_of, stand_in):
    assert world_of(2, **APART).run(lossy, stand_in) == [True, True]


def test_a_rank_that_dies_in_an_encoded_sum_is_named(run_on_fresh_ranks, stand_in):
    world = run_on_fresh_ranks(2, **APART, wire="fp8")
    world.join()
    assert world.run(hang, stand_in, "NCCL", 60.0) == [True, True]
    check_end_by_death(world)
