"""Ranks on several hosts, some on one: devices share memory within, NCCL between; the CPU's bits, and how it ends."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import timedelta
from functools import cache

import pytest
import torch
import torch.distributed as dist
from exchanges import mine
from native import PATIENCE_S, WINDOW_BYTES, arrive, bits, described
from on_hosts import world_on
from ranks import HERE, World, values_of
from ringdp.tools.netns.namespaces import why_impossible
from stand_in import backend_of, error_of
from test_device_queue import absent, behind, callers_named, end, hang
from test_queued_call import differences

DTYPES = [torch.float32, torch.bfloat16, torch.float64, torch.int32]
SIZES = [1, 4099, 300_001]  # elements: less than a pack; one segment; several pieces of several
WAYS = {dtype: ["sum"] if dtype is torch.int32 else ["sum", "mean"] for dtype in DTYPES}
WAYS[torch.float32].append("divided")


@pytest.fixture(scope="module")
def hosts_of() -> Iterator[Callable[..., World]]:
    """hosts_of(2, 1): a joined world of two ranks on one host and one on another; the same for the same arguments."""
    if reason := why_impossible():
        pytest.skip(reason)
    with ExitStack() as stack:
        yield cache(lambda *sizes, **settings: world_on(stack, sizes, window_bytes=WINDOW_BYTES, **settings))


@pytest.fixture
def fresh_hosts_of() -> Iterator[Callable[..., World]]:
    """The same, of this test alone."""
    if reason := why_impossible():
        pytest.skip(reason)
    with ExitStack() as stack:
        yield lambda *sizes: world_on(stack, sizes, window_bytes=WINDOW_BYTES)


def sums_that_differ(library: str) -> tuple[str, list[str]]:
    """On a rank: how tensors of the device travel, and which all_reduces have other bits there than on the CPU."""
    gpu, group = arrive(library, "NCCL")
    wrong = []
    for dtype in DTYPES:
        for size in SIZES:
            for how in WAYS[dtype]:
                results = []
                for put in (torch.clone, gpu.put):
                    tensor = put(mine(size, dtype))
                    if how == "divided":
                        backend_of(group).reduce_div(tensor, 3.7).wait()
                    else:
                        op = dist.ReduceOp.SUM if how == "sum" else dist.ReduceOp.AVG
                        dist.all_reduce(tensor, op, group=group)
                    results.append(bits(tensor))
                if results[0] != results[1]:
                    wrong.append(f"{how} of {size} {dtype}")
    return described(group), wrong


def called_otherwise(library: str, how: str) -> str:
    """On a rank: rank 1 calls something else; what the others are told, some of them before they have called."""
    gpu, _ = arrive(library, "NCCL")
    group = gpu.new_group()
    dist.all_reduce(gpu.put(torch.ones(4)), group=group)
    odd = HERE.rank == 1
    tensor = gpu.put(torch.ones(2000 if odd and how == "count" else 1000))
    if odd and how == "host":
        tensor = torch.ones(1000)
    wait = timedelta(seconds=PATIENCE_S)
    return error_of(lambda: dist.all_reduce(tensor, group=group, async_op=True).wait(wait))


def without_waiting(library: str) -> list[float]:
    """On a rank: many all_reduces of several pieces, none of which is waited for before the next."""
    gpu, group = arrive(library, "NCCL")
    tensors = [gpu.put(torch.full((600_000,), float(k))) for k in range(8)]
    works = [dist.all_reduce(tensor, group=group, async_op=True) for tensor in tensors]
    for work in works:
        work.wait()
    return [float(tensor.cpu()[k::8].sum()) for k, tensor in enumerate(tensors)]


def without_the_device_of(late: int, library: str, dtype: torch.dtype) -> tuple[str, bool]:
    """On a rank of (2, 1): one's device does not come in time: rank 0's, which owns the sum of its host, or rank 1's,
    which owns nothing. Whether nothing but NaN is left, and was there for what came next on the stream, before any
    news of it.
    """
    gpu, _ = arrive(library, "NCCL")
    group = gpu.new_group(timeout_s=1.0)
    tensor, seen = gpu.put(torch.ones(1000, dtype=dtype)), gpu.put(torch.zeros(1000, dtype=dtype))
    dist.all_reduce(tensor, group=group)
    gpu.synchronize()
    if HERE.rank == late:
        gpu.hold()
    work = dist.all_reduce(tensor, group=group, async_op=True)
    work.wait()
    seen.copy_(tensor, non_blocking=True)
    error = error_of(lambda: work.wait(timedelta(seconds=PATIENCE_S)))
    if HERE.rank == late:
        gpu.go()
    gpu.synchronize()
    return error, bool(torch.isnan(tensor.cpu()).all() and torch.isnan(seen.cpu()).all())


@pytest.mark.parametrize(
    "sizes", [(2, 2), *(pytest.param(sizes, marks=pytest.mark.long) for sizes in [(3, 1), (1, 2, 1)])], ids=str
)
def test_sums_have_the_bits_of_the_cpus_hierarchy(hosts_of, stand_in, sizes):
    for rank, (text, wrong) in enumerate(hosts_of(*sizes).run(sums_that_differ, stand_in)):
        assert wrong == []
        assert text.startswith(
            f"tensors on privateuseone:{rank}: NCCL 2.29.0: a device for each of {sum(sizes)} ranks, "
        )
        assert f"which share memory within each of {len(sizes)} hosts; all_reduces by hierarchy (" in text
        assert ", other sums by direct (" in text


def test_every_other_collective_goes_on_over_nccl(hosts_of, stand_in):
    for _, wrong in hosts_of(2, 1, algorithm="hierarchy").run(differences, stand_in, "NCCL"):
        assert wrong == []


def test_many_follow_one_another(hosts_of, stand_in):
    for sums in hosts_of(2, 2).run(without_waiting, stand_in):
        assert sums == [4.0 * k * 75_000 for k in range(8)]


def test_hosts_without_shared_heaps_send_as_before_and_say_why(hosts_of, stand_in):
    for text, wrong in hosts_of(2, 1, heap_bytes=0).run(sums_that_differ, stand_in):
        assert wrong == []
        assert "which share no memory; sums by direct (" in text
        assert "; no hierarchy on devices: rank 0: heap_bytes is 0" in text


def test_where_the_cpu_goes_direct_devices_do_too(hosts_of, stand_in):
    for text, wrong in hosts_of(2, 1, algorithm="direct").run(sums_that_differ, stand_in):
        assert wrong == []
        assert "which share no memory; sums by direct (algorithm=direct)" in text and "hierarchy" not in text


@pytest.mark.parametrize("how", ["count", "host"])
def test_ranks_that_disagree_are_named(hosts_of, stand_in, how):
    for error in hosts_of(2, 2).run(called_otherwise, stand_in, how):
        assert "Mismatch: " in error and 1 in callers_named(error)


@pytest.mark.parametrize(
    ("late", "dtype"),
    [
        (0, torch.float32),
        (1, torch.float32),
        pytest.param(0, torch.int32, marks=pytest.mark.long),
        pytest.param(1, torch.int32, marks=pytest.mark.long),
    ],
    ids=str,
)
def test_nobody_has_a_sum_without_a_rank_whose_device_was_late(hosts_of, stand_in, late, dtype):
    outcomes = hosts_of(2, 1).run(without_the_device_of, late, stand_in, dtype)
    for error, void in outcomes:
        assert "Timeout: " in error and f"rank {late}" in error
        assert void or not dtype.is_floating_point


def test_a_device_that_does_not_come_is_a_timeout_on_every_host(hosts_of, stand_in):
    for error, void in hosts_of(2, 2).run(behind, stand_in, "NCCL", 1.0):
        assert "Timeout: " in error and "all_reduce(SUM, float32 x 1000) on devices #" in error
        assert void


def test_who_does_not_call_is_a_timeout(hosts_of, stand_in):
    for rank, (error, void) in enumerate(hosts_of(2, 2).run(absent, stand_in, "NCCL")):
        assert void
        if rank != 1:
            assert "Timeout: " in error and "rank 1 (pid" in error


def hanging(fresh_hosts_of: Callable[..., World], stand_in: str, timeout_s: float) -> World:
    """Two hosts of two ranks, whose devices wait for rank 1's: its neighbour on its host, the others over NCCL."""
    world = fresh_hosts_of(2, 2)
    assert world.run(hang, stand_in, "NCCL", timeout_s) == [True] * 4
    return world


def test_a_rank_that_dies_is_named_on_every_host(fresh_hosts_of, stand_in):
    world = hanging(fresh_hosts_of, stand_in, 60.0)
    killed = world.kill(1)
    outcomes = world.attempt(end, ranks=[0, 2, 3])
    for error, void in values_of(outcomes):
        assert error.startswith("PeerLost: ") and "rank 1 (pid " in error
        assert void
    assert max(outcome.ended for outcome in outcomes) - killed < PATIENCE_S


@pytest.mark.long  # as among ranks each on its own host, with the neighbours' views of it besides
def test_a_stopped_rank_is_named_in_the_timeout(fresh_hosts_of, stand_in):
    world = hanging(fresh_hosts_of, stand_in, 4.0)
    world.signal(1, signal.SIGSTOP)
    outcomes = values_of(world.attempt(end, ranks=[0, 2, 3]))
    world.signal(1, signal.SIGCONT)
    for error, void in outcomes:
        assert "Timeout: " in error and "rank 1" in error
        assert void
    assert "stopped" in outcomes[0][0]
