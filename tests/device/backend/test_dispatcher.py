"""Which collectives devices run, what is refused on all ranks, and what the backend says about it."""

from __future__ import annotations

import os
import re

import pytest
import torch
import torch.distributed as dist
from native import EXECUTORS, arrive, described, device_for
from ranks import HERE
from stand_in import backend_of, error_of


def said(library: str, executor: str, lacks: str = "") -> tuple[str, str, float]:
    """On a rank: what is said before and after the first collective, and its result. `lacks`: of rank 1's devices."""
    if lacks and HERE.rank == 1:
        os.environ["STAND_IN_LACKS"] = lacks
    gpu, _ = arrive(library, executor)
    group = gpu.new_group()
    before = described(group)
    tensor = gpu.put(torch.ones(100))
    dist.all_reduce(tensor, group=group)
    return before, described(group), float(tensor.cpu()[-1])


def connected(library: str, executor: str) -> str:
    """On a rank: what is said once a group was told its device."""
    gpu, _ = arrive(library, executor)
    group = gpu.new_group()
    backend_of(group).eager_connect_single_device(device_for(executor))
    return described(group)


def first_elsewhere(library: str, executor: str) -> str:
    """On a rank: rank 0's first collective is on a device, rank 1's on the host."""
    gpu, _ = arrive(library, executor)
    group = gpu.new_group()
    tensor = torch.ones(4) if HERE.rank else gpu.put(torch.ones(4))
    return error_of(lambda: dist.all_reduce(tensor, group=group))


def on_a_second_device(library: str) -> tuple[str, list[float]]:
    """On a rank: tensors of another device than the first."""
    gpu, _ = arrive(library, "SPIN")
    group = gpu.new_group()
    sums = []
    for device in (HERE.rank, 1 - HERE.rank):
        with gpu.device(device):
            tensor = gpu.put(torch.ones(10))
            dist.all_reduce(tensor, group=group)
            sums.append(float(tensor.cpu()[0]))
    return described(group), sums


@pytest.mark.parametrize("executor", EXECUTORS)
def test_what_runs_on_devices_is_said(native_pair, stand_in, executor):
    for rank, (before, after, total) in enumerate(native_pair.run(said, stand_in, executor)):
        device = rank if executor == "SPIN" else 0
        assert before == ""
        assert after.startswith(f"tensors on privateuseone:{device}: {executor}: ")
        assert "; all_to_all of lists or with sizes, messages, and calls without" in after
        assert total == 2.0


@pytest.mark.parametrize(
    ("settings", "lacks", "why"),
    [
        ({"window_bytes": 0}, "", "window_bytes is 0"),
        ({"heap_bytes": 0}, "", "heap_bytes is 0"),
        ({"transport": "tcp"}, "", "not all ranks share memory of one host"),
        ({}, "ipc,fd", "rank 1: CUDA: "),
        ({}, "stream_waits", "the device of rank 1 cannot wait on streams"),
    ],
)
def test_where_devices_cannot_all_ranks_know_why(run_on_fresh_ranks, stand_in, settings, lacks, why):
    world = run_on_fresh_ranks(2, **settings)
    world.join()
    for _, after, total in world.run(said, stand_in, "STREAM", lacks):
        assert after.startswith("tensors on privateuseone:0: collectives run on the host, through pinned memory: ")
        assert why in after
        assert total == 2.0


@pytest.mark.parametrize("executor", EXECUTORS)
def test_memory_without_legacy_handles_goes_by_descriptor(run_on_fresh_ranks, stand_in, executor):
    world = run_on_fresh_ranks(2)
    world.join()
    for _, after, total in world.run(said, stand_in, executor, "ipc"):
        assert f": {executor}: " in after
        assert total == 2.0


def test_a_group_that_is_told_its_device_meets_at_once(native_pair, stand_in):
    assert all(": STREAM: " in text for text in native_pair.run(connected, stand_in, "STREAM"))


def test_ranks_that_begin_differently_are_named(native_pair, stand_in):
    for error in native_pair.run(first_elsewhere, stand_in, "STREAM"):
        assert "Mismatch: " in error
        error = re.sub(r" \(pid \d+ on [^)]+\)", "", error)
        assert "rank 0 called its first collective of tensors on a device" in error
        assert "rank 1 called all_reduce(SUM, float32 x 4)" in error


def test_a_second_device_goes_through_the_host(native_pair, stand_in):
    for rank, (text, sums) in enumerate(native_pair.run(on_a_second_device, stand_in)):
        assert text.startswith(f"tensors on privateuseone:{rank}: SPIN")
        assert sums == [2.0, 2.0]
