"""Which collectives devices run, what is refused, and groups that come and go: their memory comes back."""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from native import EXECUTORS, PATIENCE_S, arrive, described, device_for
from ranks import HERE
from stand_in import TYPE, backend_of, error_of, here


def said(library: str, executor: str, lacks: str = "", kind: str = "") -> tuple[str, str, float]:
    """On a rank: what is said before and after the first collective, and its result. `lacks`: of rank 1's devices."""
    if lacks and HERE.rank == 1:
        os.environ["STAND_IN_LACKS"] = lacks
    os.environ["STAND_IN_IS"] = kind
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


def on_a_thread(call: Callable[[], object]) -> None:
    """Calls it on a thread that has used no device."""
    thread = threading.Thread(target=call)
    thread.start()
    thread.join()


def contexts_of_a_life(library: str, captures: bool) -> dict[str, set[int]]:
    """On a rank that sets no current device, with tensors on one that is not the first: where contexts are made."""
    os.environ["STAND_IN_DEVICES"] = str(HERE.size + 1)
    gpu = here(library)
    groups = [gpu.new_group()]
    device = torch.device(TYPE, HERE.rank + 1)
    tensors = [torch.ones(1000, device=device)]
    works: list[dist.Work] = []
    graphs = []

    def call(**options: object) -> None:
        works.append(dist.all_reduce(tensors[0], group=groups[0], async_op=True, **options))

    def call_on_host() -> None:
        call(op=dist.ReduceOp.MAX)

    def share() -> None:
        tensors.append(backend_of(groups[0]).share_memory(1000, torch.float32, device))

    def capture() -> None:
        gpu.functions.stand_in_use_device(device.index)
        with gpu.capturing() as graph:
            call()
            works[0].wait()
        graphs.append(graph)

    def ask() -> None:
        while not works[0].is_completed():
            time.sleep(0.001)

    def wait() -> None:
        works[0].wait()

    def let_go() -> None:
        time.sleep(0.1)  # nobody else has it any more
        works.clear()

    def let_go_early() -> None:
        call()
        works.clear()

    def leave() -> None:
        dist.destroy_process_group(groups.pop())
        time.sleep(0.5)  # it is torn down on a thread of its own

    made = {}
    captured = (capture, let_go) if captures else ()
    staged = (call_on_host, wait, let_go)
    for part in (call, ask, wait, let_go, let_go_early, *captured, *staged, share, leave, tensors.pop):
        on_a_thread(part)
        made[f"{len(made)}: {part.__name__}"] = gpu.contexts()
    return made


@pytest.mark.parametrize("window_bytes", [0, 1 << 20])
def test_contexts_are_made_on_the_devices_of_tensors_only(run_on_fresh_ranks, stand_in, window_bytes):
    world = run_on_fresh_ranks(2, window_bytes=window_bytes)
    world.join()
    for rank, made in enumerate(world.run(contexts_of_a_life, stand_in, window_bytes > 0)):
        assert made == {part: {rank + 1} for part in made}


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
        ({}, "peer_writes", "rank 1: memory of rank 0: it is mapped, and what is written is not read back"),
        ({}, "peer_copies", "rank 1: memory of rank 0: it is mapped, and accesses do not end"),
    ],
)
def test_where_devices_cannot_all_ranks_know_why(run_on_fresh_ranks, stand_in, settings, lacks, why):
    world = run_on_fresh_ranks(2, **settings)
    world.join()
    for _, after, total in world.run(said, stand_in, "STREAM", lacks):
        assert after.startswith("tensors on privateuseone:0: collectives run on the host, through pinned memory: ")
        assert why in after
        assert total == 2.0


@pytest.mark.parametrize(
    ("executor", "kind", "why"),
    [
        ("SPIN", "mig", "ranks 0 and 1 are on different MIG instances, which share no memory"),
        ("STREAM", "mps", "ranks 0 and 1 are processes that share a device through MPS"),
    ],
)
def test_parts_of_a_device_go_through_the_host(run_on_fresh_ranks, stand_in, executor, kind, why):
    world = run_on_fresh_ranks(2)
    world.join()
    for _, after, total in world.run(said, stand_in, executor, "", kind):
        assert "collectives run on the host, through pinned memory: " in after
        assert why in after
        assert total == 2.0


@pytest.mark.parametrize("lacks", ["ipc", "fd"])
@pytest.mark.parametrize("executor", EXECUTORS)
def test_memory_goes_by_descriptor_or_by_legacy_handles(run_on_fresh_ranks, stand_in, executor, lacks):
    world = run_on_fresh_ranks(2)
    world.join()
    for _, after, total in world.run(said, stand_in, executor, lacks):
        assert f": {executor}: " in after
        assert ("by legacy IPC: a rank that is killed may break" in after) == (lacks == "fd")
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


# Groups come and go: their memory comes back, whatever was under way when they were left.

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
