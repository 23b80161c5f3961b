"""The backend as torch.distributed sees it: groups, errors, processes and single steps."""

from __future__ import annotations

import os
import time
from datetime import timedelta
from pathlib import Path

import pytest
import ringdp
import torch
import torch.distributed as dist
from oracle import FLOATS, INTEGERS, SIZES, fold, same_bits, small_integers
from ranks import HERE, error_of, join, on_ranks, values_of
from stand_in import TYPE


def barrier_order() -> tuple[float, float]:
    """On a rank: when it came to a barrier and when it left it."""
    time.sleep(0.02 * HERE.rank)
    came = time.monotonic()
    dist.barrier()
    return came, time.monotonic()


def test_nobody_leaves_a_barrier_before_the_last_came(world):
    times = world.run(barrier_order)
    assert min(left for _, left in times) >= max(came for came, _ in times)


def ring_sums(ranks: int, order: str, sizes: list[int]) -> list[str]:
    """On a rank: sums of some ranks that are exact in any order, so that the textbook ring's bits are known too."""
    wrong, group = [], dist.new_group(range(ranks), pg_options=ringdp.Options(algorithm="ring", order=order))
    if HERE.rank >= ranks:
        return []
    plan = group._get_backend(torch.device("cpu")).describe()
    if ranks > 1 and "ring" not in plan:
        wrong.append(plan)
    for dtype in [*FLOATS, *INTEGERS]:
        for count in sizes:
            inputs = [small_integers("rotated", rank, count, dtype) for rank in range(ranks)]
            mine = inputs[HERE.rank].clone()
            dist.all_reduce(mine, group=group)
            if not same_bits(mine, fold(inputs, "SUM")):
                wrong.append(f"{dtype} x {count}")
    dist.destroy_process_group(group)
    return wrong


@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize("transport", ["shm", "tcp"])
@pytest.mark.parametrize("order", ["rank", "rotated"])
def test_the_ring_in_both_orders(world_of, size, transport, order):
    assert world_of(4, transport=transport).run(ring_sums, size, order, [*SIZES, 100_003]) == [[]] * 4


@pytest.mark.parametrize("order", [pytest.param("rank", marks=pytest.mark.long), "rotated"])
def test_the_ring_of_eight(world_of, order):
    assert world_of(8).run(ring_sums, 8, order, [0, 1, 7, 1000]) == [[]] * 8


def largest(count: int) -> list[str]:
    """On a rank: more than 2^31 elements; ends, middle and both sides of 2^31 are looked at."""
    tensor = torch.full((count,), HERE.rank + 1, dtype=torch.uint8)
    tensor[-1] = tensor[2**31] = 10 * (HERE.rank + 1)
    dist.all_reduce(tensor)
    places = {0: 3, count // 2: 3, 2**31 - 1: 3, 2**31: 30, 2**31 + 1: 3, count - 2: 3, count - 1: 30}
    wrong = [f"[{at}] is {tensor[at]}" for at, wanted in places.items() if int(tensor[at]) != wanted]
    tensor[-1] = tensor[2**31] = 3
    threes = torch.full((1 << 24,), 3, dtype=torch.uint8)
    return wrong + ["elsewhere" for part in tensor.split(len(threes)) if not torch.equal(part, threes[: len(part)])]


def test_more_than_two_gigabytes(pair):
    lines = Path("/proc/meminfo").read_text().splitlines()
    if next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable")) < 8 << 20:
        pytest.skip("less than 8 GiB of memory is free")
    assert values_of(pair.attempt(largest, 2**31 + 17, within=240)) == [[], []]


def left_out(absent: list[int], wait_all_ranks: bool) -> str:
    """On a rank: a monitored barrier that all pass, then one that some do not come to; rank 0 has no patience."""
    ringdp.monitored_barrier(timeout=timedelta(seconds=30))
    group = dist.new_group(range(HERE.size))
    message = ""
    if HERE.rank not in absent:
        limit = timedelta(seconds=30 if HERE.rank else 1)
        message = error_of(lambda: ringdp.monitored_barrier(group, timeout=limit, wait_all_ranks=wait_all_ranks))
    dist.barrier()
    dist.destroy_process_group(group)
    return message


def test_a_monitored_barrier_names_who_did_not_come(trio):
    impatient, one, patient = trio.run(left_out, [1], False)
    assert one == ""
    assert "Rank 0 timed out in monitoredBarrier after 1000 ms: Rank 1 failed to pass monitoredBarrier" in impatient
    assert "Rank 2 successfully reached monitoredBarrier, but others did not" in patient
    for message in (impatient, patient):
        assert "rank 1 (pid" in message and "barrier() #1" in message, message


@pytest.mark.parametrize(("wait_all_ranks", "named"), [(True, "Ranks 1, 2"), (False, "Rank 1")])
def test_a_monitored_barrier_names_all_or_the_first(world_of, wait_all_ranks, named):
    message = world_of(3, transport="shm").run(left_out, [1, 2], wait_all_ranks)[0]
    assert f" ms: {named} failed to pass monitoredBarrier" in message


@pytest.mark.parametrize("device", [False, True])
@on_ranks(3, [True] * 3)
def test_the_coalescing_manager(device: bool) -> list[bool]:
    """Calls inside a coalescing manager; what came out."""
    n, rank = HERE.size, HERE.rank
    sums = [torch.full((5,), float(rank + i)) for i in range(3)]
    gathered = [torch.zeros(2 * n) for _ in range(2)]
    parts = [torch.zeros(2) for _ in range(2)]
    of_all = [sum(range(n)) + n * i for i in range(3)]
    where = torch.device("cpu") if device else None
    with dist._coalescing_manager(device=where, async_ops=True) as manager:
        for tensor in sums:
            dist.all_reduce(tensor)
    manager.wait()
    with dist._coalescing_manager(device=where, async_ops=False):
        for i, out in enumerate(gathered):
            dist.all_gather_into_tensor(out, torch.full((2,), float(rank + i)))
    with dist._coalescing_manager(device=where, async_ops=False):
        for i, part in enumerate(parts):
            dist.reduce_scatter_tensor(part, torch.full((2 * n,), float(rank + i)))
    ranks = torch.arange(float(n)).repeat_interleave(2)
    return [
        all(bool((tensor == want).all()) for tensor, want in zip(sums, of_all, strict=True)),
        all(torch.equal(out, ranks + i) for i, out in enumerate(gathered)),
        all(bool((part == want).all()) for part, want in zip(parts, of_all, strict=False)),
    ]


@on_ranks(2, (True, []))
def test_no_calls_or_tensors_are_a_finished_work() -> tuple[bool, list[torch.Tensor]]:
    """Nothing between start and end."""
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    backend._start_coalescing()
    work = backend._end_coalescing()
    work.wait()
    nothing = backend.allreduce_coalesced([]), backend.allgather_coalesced([[]] * HERE.size, [])
    return all(done.is_completed() for done in (work, *nothing)), work.get_future().wait()


@on_ranks(3)
def test_a_monitored_barrier_does_not_pass_an_old_error_off_as_its_own() -> None:
    """In a group that has failed before."""
    group = dist.new_group(range(HERE.size), timeout=timedelta(seconds=1))
    if HERE.rank != 1:
        with pytest.raises(dist.DistBackendError, match=r"Timeout|gave up"):
            dist.all_reduce(torch.ones(2), group=group)
        said = error_of(ringdp.monitored_barrier, group)
        assert "all_reduce" in said and "monitoredBarrier" not in said
    dist.barrier()
    dist.destroy_process_group(group)


@on_ranks(2)
def test_a_bracket_left_open_holds_little() -> None:
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    backend._start_coalescing()
    for _ in range(3000):
        dist.all_reduce(torch.ones(1))
    assert 0 < len(backend._end_coalescing().result()) <= 1024
    backend._start_coalescing()
    assert len(backend._end_coalescing().result()) == 0


@on_ranks(2)
def test_a_split_leaves_the_parent_its_timeout() -> None:
    """The parent's timeout before and after a split with another one."""
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    before = backend.options._timeout.total_seconds()
    group = dist.group.WORLD.split_group(list(range(HERE.size)), timedelta(seconds=77), None, "all")
    group._get_backend(torch.device("cpu")).shutdown()
    assert before == backend.options._timeout.total_seconds() != 77


def split_in_two() -> tuple[float, int, int]:
    """On a rank: the even ranks split off from the world; what an all_reduce among them gives."""
    world = dist.group.WORLD
    evens = [rank for rank in range(HERE.size) if rank % 2 == 0]
    group = world.split_group(evens, timedelta(seconds=30), None, "evens")
    if group is None:
        return -1.0, -1, -1
    tensor = torch.tensor([float(HERE.rank + 1)])
    group.allreduce([tensor]).wait()
    found = float(tensor), group.rank(), group.size()
    group._get_backend(torch.device("cpu")).shutdown()
    return found


def test_split_makes_a_group_of_some_ranks(trio):
    assert trio.run(split_in_two) == [(4.0, 0, 2), (-1.0, -1, -1), (4.0, 1, 2)]


@on_ranks(2)
def test_an_invalid_call_is_a_dist_backend_error() -> None:
    with pytest.raises(RuntimeError) as error:
        dist.all_reduce(torch.ones(2).to(torch.float8_e5m2))
    kind, message = type(error.value), str(error.value)
    assert kind is dist.DistBackendError and issubclass(kind, dist.DistError)
    assert message.startswith("InvalidArgument: all_reduce: SUM of float8_e5m2")
    assert "Exception raised from" not in message and ".cc" not in message


@on_ranks(3)
def test_abort_reaches_every_rank_and_may_be_repeated() -> None:
    """Rank 1 aborts a group in which the others wait."""
    group = dist.new_group(range(HERE.size))
    backend = group._get_backend(torch.device("cpu"))
    if HERE.rank == 1:
        backend.abort()
        backend.abort()
    with pytest.raises(dist.DistBackendError) as error:
        dist.all_reduce(torch.ones(4), group=group)
    dist.destroy_process_group(group)
    assert str(error.value).startswith("Aborted: ") and "rank 1 aborted the process group" in str(error.value)


def threads() -> int:
    return len(os.listdir("/proc/self/task"))


def joined() -> None:
    join(20.0, {})


@on_ranks(2)
def test_groups_share_the_threads_of_the_process() -> None:
    """How many threads there are with one more group, and three more."""
    counts = []
    groups = []
    for _ in range(3):
        groups.append(dist.new_group(range(HERE.size)))
        work = dist.all_reduce(torch.ones(8), group=groups[-1], async_op=True)
        work.get_future().wait()
        counts.append(threads())
    for group in groups:
        dist.destroy_process_group(group)
    assert len(set(counts)) == 1, counts


@pytest.mark.parametrize(("level", "shown"), [("info", True), ("warning", False)])
def test_the_log_level_comes_from_the_environment(run_on_fresh_ranks, level, shown):
    world = run_on_fresh_ranks(2, log=level)
    world.run(joined)
    for rank in range(2):
        assert (f"[ringdp rank {rank}/2] info: group " in world.stderr(rank)) == shown
        assert ("plan: arena (" in world.stderr(rank)) == shown


def test_a_bad_log_level_is_refused(run_on_fresh_ranks):
    outcome = run_on_fresh_ranks(1, log="loud").attempt(joined)[0]
    assert "invalid value 'loud' for RINGDP_LOG (expected one of: error, warning, info, debug)" in outcome.error


def why_not(library: str) -> tuple[str, str]:
    """On a rank: what is said of its device, and to who steps there all the same."""
    from native import arrive
    from stand_in import backend_of
    from steps import Bucket, OnDevice

    gpu, _ = arrive(library, "SPIN")
    group = gpu.new_group()
    ours = OnDevice(gpu, Bucket())
    said = backend_of(group).why_no_step(torch.device(TYPE, ours.gradients.device.index))
    return said, error_of(lambda: ours.step(group, 2.0).wait())


def test_devices_that_share_memory_step(world_of, stand_in):
    assert world_of(2, window_bytes=1 << 20).run(why_not, stand_in) == [("", "")] * 2


@pytest.mark.parametrize(("settings", "why"), [({"window_bytes": 0}, "window_bytes is 0"), ({"heap_bytes": 0}, "heap")])
def test_others_say_why_not(world_of, stand_in, settings, why):
    for said, error in world_of(2, **settings).run(why_not, stand_in):
        assert why in said
        assert f"reduce_scatter_step: {said}" in error


@on_ranks(2)
def test_the_cpu_has_its_own_way() -> None:
    """What is said of tensors of the CPU, of a sink of theirs, and of a divisor."""
    from ringdp import _native

    core, backend = _native.load(), dist.group.WORLD._get_backend(torch.device("cpu"))
    sinks = core.step_sink([]), core.device_sink(torch.zeros(8), [])
    pairs = zip(sinks, (2.0, 0.0), strict=True)
    calls = [(lambda s=s, d=d: backend.reduce_scatter_step(torch.zeros(8), d, s)) for s, d in pairs]
    cpu, sink, divisor = [backend.why_no_step(torch.device("cpu")), *map(error_of, calls)]
    assert cpu == "tensors on cpu are not of a device that ringdp serves"
    assert "the sink is of the CPU" in sink
    assert "divisor=0.000000 must be finite and not 0" in divisor
