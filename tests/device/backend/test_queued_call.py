"""Collectives and steps that devices run: the bits of the CPU's; the host waits for nothing, streams keep the order."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from itertools import pairwise
from typing import Any

import exchanges
import pytest
import torch
import torch.distributed as dist
from native import PATIENCE_S, WINDOW_BYTES, arrive, bits, described, device_for, is_void
from ranks import HERE, values_of
from stand_in import TYPE, backend_of, error_of, here
from steps import PART, Bucket, OnDevice


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
    flat = (
        lambda t: t.view(-1)[3:1001],
        lambda t: t.view(-1)[1:2],
        lambda t: t.view(-1)[4:8],
        lambda t: t.view(-1)[8:15],
    )
    for cut in (lambda t: t.t(), lambda t: t[:, ::3], *flat):
        both = [put(exchanges.mine(4000, torch.float32).view(40, 100)) for put in (torch.clone, gpu.put)]
        for whole in both:
            dist.all_reduce(cut(whole), group=group)
        results.append(bits(both[0]) == bits(both[1]))
    wholes = [put(exchanges.mine(1200 * HERE.size, torch.float32)) for put in (torch.clone, gpu.put)]
    for whole in wholes:
        dist.reduce_scatter_tensor(whole.chunk(HERE.size)[HERE.rank], whole, group=group)
        dist.all_gather_into_tensor(whole, whole.chunk(HERE.size)[HERE.rank], group=group)
    return [*results, bits(wholes[0]) == bits(wholes[1])]


NEIGHBOURS = 16_384  # elements: 64 KiB, which the stand-in gives without a gap behind


def neighbours(count: int) -> list[torch.Tensor]:
    """Tensors of zeros, each with an allocation of its own, that lie behind one another on the device."""
    several = sorted((torch.zeros(NEIGHBOURS, device=TYPE) for _ in range(16 * count)), key=torch.Tensor.data_ptr)
    for first in range(len(several)):
        run = several[first : first + count]
        if all(b.data_ptr() == a.data_ptr() + a.nbytes for a, b in pairwise(run)) and len(run) == count:
            return run
    raise RuntimeError("allocations of the stand-in are no neighbours")


def in_neighbours(library: str, executor: str) -> list[bool]:
    """On a rank: lists of tensors whose allocations meet have the CPU's bits, in every collective that takes lists."""
    _, group = arrive(library, executor)
    kept = []
    for lists in (lambda: [torch.zeros(NEIGHBOURS) for _ in range(HERE.size)], lambda: neighbours(HERE.size)):
        gathered, at_root, scattered, reduced = (lists() for _ in range(4))
        part, own = torch.zeros_like(gathered[0]), torch.zeros_like(gathered[0])
        for rank in range(HERE.size):
            scattered[rank].copy_(exchanges.values(NEIGHBOURS, torch.float32, 10 + rank))
            reduced[rank].copy_(exchanges.values(NEIGHBOURS, torch.float32, 20 + HERE.rank + rank))
        dist.all_gather(gathered, reduced[0], group=group)
        dist.gather(reduced[0], at_root if HERE.rank == 0 else None, 0, group=group)
        dist.scatter(part, scattered if HERE.rank == 0 else None, 0, group=group)
        dist.reduce_scatter(own, reduced, group=group)
        kept.append([bits(tensor) for tensor in (*gathered, *at_root, part, own)])
    return [a == b for a, b in zip(*kept, strict=True)]


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
    assert native_pair.run(any_layout, stand_in, executor) == [[True] * 7] * 2


@pytest.mark.parametrize("size", [2, 4])
def test_lists_of_tensors_whose_allocations_meet(world_of, stand_in, executor, size):
    """Of which no copy may reach from one into the next."""
    world = world_of(size, window_bytes=WINDOW_BYTES)
    assert world.run(in_neighbours, stand_in, executor) == [[True] * (2 * size + 2)] * size


def test_several_in_one_call(native_pair, stand_in, executor):
    assert native_pair.run(coalesced, stand_in, executor) == [[True] * 3] * 2


def test_a_barrier_waits_for_what_nobody_has_waited_for(native_pair, stand_in, executor):
    assert native_pair.run(barriers, stand_in, executor) == [[False, False, True, True]] * 2


Start = Callable[[torch.Tensor, dist.ProcessGroup], dist.Work]


def summed(tensor: torch.Tensor, group: dist.ProcessGroup) -> dist.Work:
    """Everybody's numbers."""
    return dist.all_reduce(tensor, group=group, async_op=True)


def stepped(tensor: torch.Tensor, group: dist.ProcessGroup) -> dist.Work:
    """The same gradients and parameters: each loses 1000 times the sign of what all have."""
    from ringdp import _native

    part = tensor.numel() // HERE.size
    state = [torch.empty(part, device=tensor.device).fill_(0) for _ in range(2)]  # zeros() waits for the stream
    settings = (1000.0, 0.0, 0.0, 0.0, 0.0, False, False, False)
    sink = _native.load().device_sink(tensor, [(0, state, 1.0, settings)])
    return backend_of(group).reduce_scatter_step(tensor, 1.0, sink)


JOBS: dict[str, tuple[Start, float]] = {"collective": (summed, 3.0), "step": (stepped, 0.0)}


def behind_slow_work(library: str, executor: str, job: str) -> tuple[bool, bool, torch.Tensor]:
    """On a rank: a held job writes the input after the call was made and waited for; a later one reads it."""
    gpu, group = arrive(library, executor)
    start, _ = JOBS[job]
    tensor, seen = gpu.put(torch.ones(1024)), gpu.put(torch.zeros(1024))
    start(tensor, group).wait()
    gpu.synchronize()
    gpu.hold()
    tensor.fill_(HERE.rank + 1)
    work = start(tensor, group)
    waited = work.wait()
    seen.copy_(tensor, non_blocking=True)
    early = work.is_completed()
    dist.barrier()  # nobody's stream has moved
    gpu.go()
    return waited, early, seen.cpu()


def crossing_groups(library: str, executor: str, job: str) -> list[float]:
    """On a rank: two groups on two streams, called in opposite orders."""
    gpu, _ = arrive(library, executor)
    groups = [gpu.new_group(), gpu.new_group()]
    tensors = [gpu.put(torch.full((3072,), 1.0 + i)) for i in range(2)]
    for group, tensor in zip(groups, tensors, strict=True):
        dist.all_reduce(tensor, group=group)  # the devices have met
    order = [0, 1] if HERE.rank % 2 == 0 else [1, 0]
    works = {}
    for i in order:
        with gpu.stream(1 + i):
            works[i] = JOBS[job][0](tensors[i], groups[i])
    for i in reversed(order):
        assert works[i].wait(timedelta(seconds=PATIENCE_S))
    assert all(described(group) for group in groups)
    return [float(tensor.cpu()[-1]) for tensor in tensors]


@pytest.mark.parametrize("job", JOBS)
def test_streams_order_what_comes_before_and_after(native_pair, stand_in, executor, job):
    for rank, (waited, early, seen) in enumerate(native_pair.run(behind_slow_work, stand_in, executor, job)):
        assert waited and not early
        if job == "collective":
            assert seen.tolist() == [3.0] * 1024
        else:  # each part began as its owner's parameters, which differ, and everybody has both
            assert seen.tolist() == [1.0 - 1000] * 512 + [2.0 - 1000] * 512, rank


@pytest.mark.parametrize(("job", "ends"), [("collective", [4.0, 8.0]), ("step", [2.0 - 1000, 4.0 - 1000])])
def test_groups_that_cross_do_not_wait_for_each_other(native_pair, stand_in, executor, job, ends):
    assert native_pair.run(crossing_groups, stand_in, executor, job) == [ends] * 2


SEVERAL_PIECES = 100 * 1024  # of a part: with two ranks or more not all parts fit into the window
KEPT: dict[str, Any] = {}  # on a rank: between two calls of a test


def step_differences(library: str, executor: str, part: int, whole: bool) -> list[str]:
    """On a rank: what differs from the CPU after two steps with other gradients, and a collective in between."""
    gpu, group = arrive(library, executor)
    bucket = Bucket(part)
    ours = OnDevice(gpu, bucket, whole=whole)
    for divisor in (float(HERE.size), 3.7):
        ours.step(group, divisor).wait()
        bucket.step(divisor)
        dist.all_reduce(ours.gradients, group=group)
        total = ours.gradients.cpu()
        bucket.gradients = [total] * HERE.size
    return ours.differences()


def disagreeing(library: str, executor: str) -> tuple[str, bool, list[str]]:
    """On a rank: rank 1 does not step. The error; whether parameters are void; which state has changed."""
    gpu, _ = arrive(library, executor)
    group = gpu.new_group()
    ours = OnDevice(gpu, Bucket())
    backend = backend_of(group)
    assert backend.why_no_step(ours.gradients.device) == ""
    if HERE.rank == 1:
        work = backend.reduce_scatter_div(gpu.put(ours.bucket.gradients[0][:PART]), ours.gradients, 2.0)
    else:
        work = ours.step(group, 2.0)
    error = error_of(lambda: work.wait(timedelta(seconds=PATIENCE_S)))
    changed = [name for name in ours.differences() if name != "parameters"]
    return error, HERE.rank == 1 or is_void(ours.parameters), changed


def hang(library: str, executor: str) -> bool:
    """On a rank: begins a step to which rank 1's device does not come."""
    gpu, _ = arrive(library, executor)
    group = gpu.new_group(60.0)
    ours = OnDevice(gpu, Bucket())
    assert backend_of(group).why_no_step(ours.gradients.device) == ""
    gpu.synchronize()
    if HERE.rank == 1:
        gpu.hold()
    KEPT.update(ours=ours, work=ours.step(group, 2.0), gpu=gpu)
    dist.barrier()
    return KEPT["work"].wait()


def end() -> tuple[str, bool, list[str]]:
    """On rank 0, once rank 1 is dead: the error, whether parameters are void, which state has changed."""
    error = error_of(lambda: KEPT["work"].wait(timedelta(seconds=PATIENCE_S)))
    KEPT["gpu"].synchronize()
    changed = [name for name in KEPT["ours"].differences() if name != "parameters"]
    return error, is_void(KEPT["ours"].parameters), changed


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_the_bits_of_steps_are_the_cpus(world_of, stand_in, executor, size, whole):
    world = world_of(size, window_bytes=WINDOW_BYTES)
    assert world.run(step_differences, stand_in, executor, PART, whole) == [[]] * size


def test_what_windows_do_not_hold_goes_in_pieces(world_of, stand_in, executor):
    world = world_of(3, window_bytes=WINDOW_BYTES)
    assert world.run(step_differences, stand_in, executor, SEVERAL_PIECES, True) == [[]] * 3


def test_nothing_is_stepped_where_ranks_disagree(native_pair, stand_in, executor):
    for error, void, changed in native_pair.run(disagreeing, stand_in, executor):
        assert "Mismatch: " in error and "(step)" in error and "on devices with a step" in error
        assert void
        assert changed == []


def test_a_rank_that_dies_is_named_and_nothing_is_stepped(run_on_fresh_ranks, stand_in, executor):
    world = run_on_fresh_ranks(2, window_bytes=WINDOW_BYTES)
    world.join()
    assert world.run(hang, stand_in, executor) == [True, True]
    world.kill(1)
    error, void, changed = values_of(world.attempt(end, ranks=[0]))[0]
    assert error.startswith("PeerLost: rank 1 (pid ")
    assert void
    assert changed == []


# A call is ordered by streams on both sides and the host waits for nothing; what no graph can replay is refused.


def behind_slow_stream(library: str) -> tuple[bool, list[float]]:
    """On a rank: the input is written by a job that is still held while the collective is called and waited for."""
    gpu = here(library)
    tensor = gpu.put(torch.zeros(1000))
    gpu.hold()
    tensor.fill_(HERE.rank + 1)
    work = dist.all_reduce(tensor, group=gpu.group, async_op=True)
    work.wait()
    early = work.is_completed()
    dist.barrier()  # nobody's stream has moved
    gpu.go()
    return early, tensor.cpu()[[0, -1]].tolist()


def before_slow_peer(library: str) -> tuple[bool, float]:
    """On a rank: what is queued after wait() sees the sum, though rank 0 gives its part only once that is queued."""
    gpu = here(library)
    tensor, seen = gpu.put(torch.full((1000,), 7.0)), gpu.put(torch.zeros(1000))
    if HERE.rank == 0:
        gpu.hold()
    dist.all_reduce(tensor, group=gpu.group, async_op=True).wait()
    seen.copy_(tensor, non_blocking=True)
    waits = not gpu.is_idle()
    dist.barrier()
    if HERE.rank == 0:
        gpu.go()
    return waits, float(seen.cpu()[0])


def in_order_with_the_cpu(library: str) -> list[float]:
    """On a rank: collectives of one group keep the order of the calls, wherever their tensors lie."""
    gpu = here(library)
    sums = []
    for step in range(5):
        device, host = gpu.put(torch.full((10,), float(step))), torch.full((10,), 100.0 + step)
        if HERE.rank == step % HERE.size:
            gpu.hold()
        works = [dist.all_reduce(tensor, group=gpu.group, async_op=True) for tensor in (device, host)]
        if HERE.rank == step % HERE.size:
            gpu.go()
        works[1].wait()
        works[0].wait()
        sums += [float(device.cpu()[0]), float(host[0])]
    return sums


def test_inputs_are_those_of_the_callers_stream(pair, stand_in):
    assert pair.run(behind_slow_stream, stand_in) == [(False, [3.0, 3.0])] * 2


def test_the_callers_stream_goes_on_behind_the_results(pair, stand_in):
    assert pair.run(before_slow_peer, stand_in) == [(True, 14.0)] * 2


def test_a_group_keeps_the_order_of_calls(pair, stand_in):
    wanted = [2.0 * value for step in range(5) for value in (step, 100 + step)]
    assert pair.run(in_order_with_the_cpu, stand_in) == [wanted] * 2


def captured(library: str) -> tuple[str, float]:
    """On a rank: refused while the stream is being captured, before anything moves."""
    gpu, _ = arrive(library, "STREAM")
    group = gpu.new_group()
    tensor = gpu.put(torch.ones(4))
    dist.all_reduce(tensor, group=group)
    gpu.synchronize()
    with gpu.capturing():
        error = error_of(lambda: dist.all_reduce(tensor, group=group))
    dist.all_reduce(tensor, group=group)
    return error, float(tensor.cpu()[0])


def captured_first(library: str) -> tuple[str, float]:
    """On a rank: a group's first call is made while its stream is captured: the capture goes on, the group is good."""
    gpu, _ = arrive(library, "STREAM")
    group = gpu.new_group()
    tensor, other, twos = gpu.put(torch.ones(4)), gpu.put(torch.ones(4)), gpu.put(torch.full((4,), 2.0))
    gpu.synchronize()
    with gpu.capturing() as graph:
        error = error_of(lambda: dist.all_reduce(tensor, group=group))
        other.copy_(twos, non_blocking=True)
    graph.replay()
    dist.all_reduce(tensor, group=group)
    return error, float(tensor.cpu()[0] + other.cpu()[0])


@pytest.mark.parametrize("window_bytes", [0, 1 << 20])
def test_a_first_call_that_is_captured_is_refused_before_it_takes_memory(world_of, stand_in, window_bytes):
    for error, total in world_of(2, window_bytes=window_bytes).run(captured_first, stand_in):
        assert "is being captured" in error
        assert total == 4.0


@pytest.mark.parametrize("window_bytes", [0, 1 << 20])
def test_a_stream_that_is_captured_is_refused(world_of, stand_in, window_bytes):
    for error, total in world_of(2, window_bytes=window_bytes).run(captured, stand_in):
        assert error.startswith("InvalidArgument: the current stream of privateuseone:0 is being captured")
        assert "call it outside the capture" in error
        assert total == 4.0
