"""Groups come and go: their memory comes back, whatever was under way when they were left."""

from __future__ import annotations

import time

import pytest
import torch
import torch.distributed as dist
from native import EXECUTORS, PATIENCE_S, arrive, described
from ranks import HERE

GROUPS = 5
WINDOW_BYTES = 220 << 20  # a stand-in's device holds a few of these, not all


def one_after_the_other(library: str, executor: str) -> list[bool]:
    """On a rank: whether each of many groups had memory on the device; nobody waits for its last call."""
    gpu, _ = arrive(library, executor)
    served = []
    for _ in range(GROUPS):
        has_memory, tries = False, 100
        while not has_memory and (tries := tries - 1):  # all ranks have it, or none: earlier ones go late
            group = gpu.new_group()
            dist.all_reduce(gpu.put(torch.ones(10)), group=group, async_op=True)
            has_memory = f" {executor}: " in described(group)
            dist.barrier()
            dist.destroy_process_group(group)
        served.append(has_memory)
    return served


def left_under_way(library: str, executor: str) -> tuple[bool, bool]:
    """On a rank: the group is left while its device still waits for an input; whether that ends once it comes."""
    gpu, _ = arrive(library, executor)
    group = gpu.new_group()
    tensor = gpu.put(torch.ones(10))
    dist.all_reduce(tensor, group=group)
    gpu.synchronize()
    gpu.hold()
    work = dist.all_reduce(tensor, group=group, async_op=True)
    dist.all_reduce(torch.ones(1), group=group)  # the host has compared what all have called before
    dist.destroy_process_group(group)
    early = work.is_completed()
    gpu.go()
    deadline = time.monotonic() + PATIENCE_S
    while not work.is_completed() and time.monotonic() < deadline:
        time.sleep(0.01)
    return early, work.is_completed()


def left_without_a_peer(library: str, executor: str) -> bool:
    """On a rank: the group is left while rank 1's device never comes; whether rank 0's goes on at the deadline."""
    gpu, _ = arrive(library, executor)
    group = gpu.new_group(timeout_s=1.0)
    tensor = gpu.put(torch.ones(10))
    dist.all_reduce(tensor, group=group)
    gpu.synchronize()
    if HERE.rank == 1:
        gpu.hold()
    work = dist.all_reduce(tensor, group=group, async_op=True)
    dist.all_reduce(torch.ones(1), group=group)
    dist.destroy_process_group(group)
    deadline = time.monotonic() + PATIENCE_S
    while HERE.rank == 0 and not work.is_completed() and time.monotonic() < deadline:
        time.sleep(0.01)
    ended = HERE.rank == 1 or work.is_completed()
    dist.barrier()
    if HERE.rank == 1:
        gpu.go()
    gpu.synchronize()
    return ended


def freed_beside_a_capture(library: str, executor: str) -> bool:
    """On a rank: a group is left while another stream is captured; whether its memory came back all the same."""
    gpu, _ = arrive(library, executor)
    before = gpu.pinned_bytes()
    group = gpu.new_group()
    dist.all_reduce(gpu.put(torch.ones(10)), group=group)
    gpu.synchronize()
    dist.barrier()
    deadline = time.monotonic() + PATIENCE_S
    with gpu.capturing(stream=3):
        dist.destroy_process_group(group)
        del group  # which holds its memory, too
        while gpu.pinned_bytes() > before and time.monotonic() < deadline:
            time.sleep(0.01)
        return gpu.pinned_bytes() == before


@pytest.mark.parametrize("executor", ["SPIN", pytest.param("STREAM", marks=pytest.mark.long)])
def test_memory_comes_back(world_of, stand_in, executor):
    world = world_of(2, window_bytes=WINDOW_BYTES)
    assert world.run(one_after_the_other, stand_in, executor) == [[True] * GROUPS] * 2


@pytest.mark.parametrize("executor", EXECUTORS)
def test_a_group_that_is_left_lets_its_calls_end(native_pair, stand_in, executor):
    assert native_pair.run(left_under_way, stand_in, executor) == [(False, True)] * 2


@pytest.mark.parametrize("executor", EXECUTORS)
def test_a_group_that_is_left_ends_its_calls_at_their_deadline(native_pair, stand_in, executor):
    assert native_pair.run(left_without_a_peer, stand_in, executor) == [True] * 2


@pytest.mark.parametrize("executor", EXECUTORS)
def test_memory_comes_back_beside_a_capture(run_on_fresh_ranks, stand_in, executor):
    world = run_on_fresh_ranks(2, window_bytes=1 << 20)  # elsewhere groups of earlier tests are seen off meanwhile
    world.join()
    assert world.run(freed_beside_a_capture, stand_in, executor) == [True] * 2
