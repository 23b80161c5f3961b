"""Collectives that are captured into graphs: replayed with other values, among other calls, and ended like any."""

from __future__ import annotations

import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from exchanges import Put, mine, values
from native import PATIENCE_S, WINDOW_BYTES, arrive, bits, described, is_void
from ranks import HERE
from stand_in import TYPE, StandIn, backend_of, error_of

TURNS = 3
Tensors = dict[str, torch.Tensor]


def tensors_for(put: Put, count: int) -> Tensors:
    """What is there before a capture, in which no memory can be had."""
    sizes = {"source": HERE.size, "summed": HERE.size, "part": 1, "gathered": HERE.size, "all": HERE.size, "reduced": 1}
    return {name: put(torch.zeros(count * parts)) for name, parts in sizes.items()}


def exchange(group: dist.ProcessGroup, tensors: Tensors) -> None:
    """Several collectives, one after the other, each on what those before have left."""
    source, part = tensors["source"], tensors["part"]
    tensors["summed"].copy_(source, non_blocking=True)
    dist.all_reduce(tensors["summed"], dist.ReduceOp.AVG, group=group)
    dist.reduce_scatter_tensor(part, tensors["summed"], group=group)
    dist.all_gather_into_tensor(tensors["gathered"], part, group=group)
    dist.all_to_all_single(tensors["all"], tensors["gathered"], group=group)
    tensors["reduced"].copy_(part, non_blocking=True)
    dist.reduce(tensors["reduced"], HERE.size - 1, group=group)
    dist.broadcast(part, HERE.size - 1, group=group)


def replayed(library: str, count: int) -> list[str]:
    """On a rank: what of the replays, and of calls between them, has other bits than on the CPU."""
    gpu, group = arrive(library, "SPIN")
    there, here = tensors_for(gpu.put, count), tensors_for(torch.clone, count)
    exchange(group, there)
    gpu.synchronize()
    with gpu.capturing() as graph:
        exchange(group, there)
    wrong = []
    for turn in range(TURNS):
        source = values(count * HERE.size, torch.float32, 100 * turn + HERE.rank)
        here["source"].copy_(source)
        there["source"].copy_(gpu.put(source))
        graph.replay()
        exchange(group, here)
        wrong += [f"{name}, turn {turn}" for name in here if bits(there[name]) != bits(here[name])]
        eager = [put(mine(count, torch.float32)) for put in (torch.clone, gpu.put)]
        for tensor in eager:
            dist.all_reduce(tensor, group=group)
        wrong += ["a call between"] * (bits(eager[0]) != bits(eager[1]))
    return wrong


def overlapped(library: str) -> list[float]:
    """On a rank: two calls of one graph are waited for in the other order; the capture goes on between."""
    gpu, group = arrive(library, "SPIN")
    first, second, own = (gpu.put(torch.full((3000,), value)) for value in (1.0, 2.0, 0.0))
    dist.all_reduce(gpu.put(torch.ones(4)), group=group)
    gpu.synchronize()
    with gpu.capturing() as graph:
        works = [dist.all_reduce(tensor, group=group, async_op=True) for tensor in (first, second)]
        own.fill_(5.0)
        for work in reversed(works):
            work.wait()
    for _ in range(2):
        graph.replay()
    return [float(tensor.cpu()[-1]) for tensor in (first, second, own)]


def one_capture(gpu: StandIn, timeout_s: float = PATIENCE_S) -> tuple:
    """A group, a tensor and its all_reduce as a graph."""
    group, tensor = gpu.new_group(timeout_s), gpu.put(torch.ones(1000))
    dist.all_reduce(tensor, group=group)
    gpu.synchronize()
    with gpu.capturing() as graph:
        work = dist.all_reduce(tensor, group=group, async_op=True)
        work.wait()
    return group, tensor, graph, work


def different(library: str) -> tuple[str, bool]:
    """On a rank: what it is told when the ranks capture different calls, and whether a replay is void."""
    gpu, _ = arrive(library, "SPIN")
    group, tensor = gpu.new_group(), gpu.put(torch.ones(1000 + HERE.rank))
    dist.all_reduce(gpu.put(torch.ones(4)), group=group)
    gpu.synchronize()
    with gpu.capturing() as graph:
        error = error_of(lambda: dist.all_reduce(tensor, group=group))
    graph.replay()
    return error, is_void(tensor)


def without_a_rank(library: str) -> tuple[bool, bool, str, bool, bool]:
    """On a rank: rank 1 does not join the second replay."""
    gpu, _ = arrive(library, "SPIN")
    group, tensor, graph, work = one_capture(gpu, timeout_s=1.5)
    graph.replay()
    good = float(tensor.cpu()[0]) == 2.0 * HERE.size and work.is_success()
    if HERE.rank == 0:
        graph.replay()
    void = is_void(tensor)
    error, deadline = "", time.monotonic() + PATIENCE_S
    while not error and time.monotonic() < deadline:
        time.sleep(0.05)
        later = error_of(lambda: backend_of(group).reduce_div(torch.ones(1), 2.0).wait()) if HERE.rank == 0 else ""
        error = later if HERE.rank == 0 else str(work.exception() or "")
    graph.replay()  # ends at once, on both
    return good, void, error, is_void(tensor), work.is_success()


def in_a_buffer(library: str) -> tuple[list[float], bool]:
    """On a rank: replays in memory that devices share, one without its tensor; whether the memory is still there."""
    gpu, _ = arrive(library, "SPIN")
    group = gpu.new_group()
    backend = backend_of(group)
    tensor = backend.share_memory(1000, torch.float32, torch.device(TYPE, HERE.rank)).fill_(1.0)
    gpu.synchronize()
    with gpu.capturing() as graph:
        backend.reduce_div(tensor, 1.0).wait()
    seen = []
    for value in (1.0, 3.0):
        tensor.fill_(value)
        graph.replay()
        seen.append(float(tensor.cpu()[-1]))
    del tensor
    backend.reclaim_memory(torch.device(TYPE, HERE.rank))
    graph.replay()
    gpu.synchronize()
    return seen, " 4000 bytes of each device" in described(group)


def after_the_group(library: str) -> tuple[bool, float]:
    """On a rank: a graph that outlives its group leaves NaN, also when all of the group is gone; the device goes on."""
    gpu, other = arrive(library, "SPIN")
    group, tensor, graph, work = one_capture(gpu)
    graph.replay()
    gpu.synchronize()
    dist.barrier()
    dist.destroy_process_group(group)
    del group, work
    deadline = time.monotonic() + PATIENCE_S
    while not is_void(tensor) and time.monotonic() < deadline:
        tensor.fill_(1.0)
        graph.replay()
    for _ in range(20):  # meanwhile the group's memory would go
        graph.replay()
        gpu.synchronize()
        time.sleep(0.05)
    ones = gpu.put(torch.ones(10))
    dist.all_reduce(ones, group=other)
    return is_void(tensor), float(ones.cpu()[0])


def asked_beside_a_capture(library: str, executor: str) -> tuple[list[bool], float]:
    """On a rank: calls are made, asked for, waited for and let go of while another stream is captured."""
    gpu, group = arrive(library, executor)
    tensor = gpu.put(torch.ones(1000))
    dist.all_reduce(tensor, group=group)
    gpu.synchronize()
    done = []
    with gpu.capturing(stream=3):
        for _ in range(2):
            work = dist.all_reduce(tensor, group=group, async_op=True)
            work.is_completed()
            work.wait(timedelta(seconds=PATIENCE_S))
            done.append(work.is_completed())
            del work
    return done, float(tensor.cpu()[0])


def refused(library: str, executor: str) -> dict[str, str]:
    """On a rank: what calls say while the stream is captured; the group is good afterwards."""
    gpu, group = arrive(library, executor)
    tensor, backend = gpu.put(torch.ones(4)), backend_of(group)
    fresh = gpu.new_group()
    dist.all_reduce(tensor, group=group)
    gpu.synchronize()
    options = dist.BarrierOptions()
    options.device = torch.device(TYPE, tensor.device.index)
    calls = {
        "all_reduce": lambda: dist.all_reduce(tensor, group=group),
        "barrier": lambda: backend.barrier(options).wait(),
        "no kernel": lambda: dist.all_reduce(tensor, dist.ReduceOp.MAX, group=group),
        "message": lambda: dist.send(tensor, (HERE.rank + 1) % HERE.size, group=group),
        "first": lambda: dist.all_reduce(tensor, group=fresh),
    }
    with gpu.capturing():
        said = {name: error_of(call) for name, call in calls.items()}
    dist.all_reduce(gpu.put(torch.ones(4)), group=fresh)
    return said


def waited_for_late(library: str) -> tuple[str, str]:
    """On a rank: a call that is waited for after the capture, or not at all."""
    gpu, _ = arrive(library, "SPIN")
    _, tensor, _, work = one_capture(gpu)
    late = error_of(lambda: work.wait())
    group = gpu.new_group()
    dist.all_reduce(tensor, group=group)
    gpu.synchronize()

    def forgetful() -> None:
        with gpu.capturing():
            dist.all_reduce(tensor, group=group, async_op=True)

    return late, error_of(forgetful)


@pytest.mark.parametrize(
    ("size", "count"),
    [
        (3, 5),
        (3, 150_001),
        *(pytest.param(*cell, marks=pytest.mark.long) for cell in [(2, 5), (2, 4099), (2, 150_001), (3, 4099)]),
    ],
)
def test_replays_have_the_bits_of_the_cpu(world_of, stand_in, size, count):
    world = world_of(size, window_bytes=WINDOW_BYTES)
    assert world.run(replayed, stand_in, count) == [[]] * size


def test_calls_of_one_graph_overlap_with_what_it_computes(native_pair, stand_in):
    assert native_pair.run(overlapped, stand_in) == [[4.0, 8.0, 5.0]] * 2


@pytest.mark.parametrize("window_bytes", [0, WINDOW_BYTES])
@pytest.mark.parametrize("executor", ["SPIN", "STREAM"])
def test_calls_beside_a_capture_disturb_it_not(world_of, stand_in, executor, window_bytes):
    world = world_of(2, window_bytes=window_bytes)
    assert world.run(asked_beside_a_capture, stand_in, executor) == [([True, True], 8.0)] * 2


def test_different_captures_are_a_mismatch(native_pair, stand_in):
    for error, void in native_pair.run(different, stand_in):
        assert error.startswith("Mismatch: ")
        assert void


def test_a_replay_without_a_rank_ends_at_the_deadline(native_pair, stand_in):
    first, second = native_pair.run(without_a_rank, stand_in)
    assert first[:2] == (True, True)
    assert second[:2] == (True, False)
    assert "of a graph did not finish in time: waited 1.5 s" in first[2]
    assert "rank 1" in first[2]
    assert "of a graph did not finish in time" in second[2]
    assert first[3:] == second[3:] == (True, False)


def test_a_buffer_stays_for_what_was_captured_in_it(world_of, stand_in):
    world = world_of(2, window_bytes=WINDOW_BYTES)
    assert world.run(in_a_buffer, stand_in) == [([2.0, 6.0], True)] * 2


def test_a_graph_that_outlives_its_group_leaves_no_number(native_pair, stand_in):
    assert native_pair.run(after_the_group, stand_in) == [(True, 2.0)] * 2


@pytest.mark.parametrize("executor", ["SPIN", "STREAM"])
def test_what_no_graph_can_replay_is_refused(native_pair, stand_in, executor):
    for said in native_pair.run(refused, stand_in, executor):
        assert ("STREAM" in said.pop("all_reduce")) == (executor == "STREAM")
        for error in said.values():
            assert error.startswith("InvalidArgument: the current stream of privateuseone:")
        assert "the host waits for a barrier" in said["barrier"]
        assert "no kernel for MAX on float32; call it outside the capture" in said["no kernel"]
        assert "this call goes through host memory" in said["message"]
        assert "make one before the capture" in said["first"]


def test_a_captured_call_is_waited_for_within_the_capture(native_pair, stand_in):
    for late, forgotten in native_pair.run(waited_for_late, stand_in):
        assert "wait for it within the capture" in late
        assert "was not waited for" in forgotten
