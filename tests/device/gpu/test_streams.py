"""Streams of CUDA: a call sees what its stream has written, two groups on two streams both end, graphs are refused or
right.
"""

from __future__ import annotations

import one_gpu as gpu
import pytest
import torch
import torch.distributed as dist
from ranks import HERE

gpu.require(cuda=True)
COUNT = 1 << 20
SLEEP = 50_000_000  # cycles: tens of milliseconds


def behind_slow_work(turns: int) -> list[float]:
    """On a rank: inputs are written, and results read, behind a kernel that takes its time."""
    seen = []
    for turn in range(turns):
        tensor = torch.zeros(COUNT, device="cuda")
        torch.cuda._sleep(SLEEP)
        tensor.fill_(HERE.rank + turn)
        dist.all_reduce(tensor)
        seen.append((tensor * 2)[-1])
    return [float(one) for one in seen]


def on_two_streams(turns: int) -> list[bool]:
    """On a rank: two groups, each on a stream of its own, called in another order on odd ranks."""
    groups = [dist.new_group(range(HERE.size)) for _ in range(2)]
    for group in groups:  # the first call of a group meets: in the same order everywhere
        dist.all_reduce(torch.zeros(1, device="cuda"), group=group)
    streams = [torch.cuda.Stream() for _ in groups]
    tensors = [torch.full((COUNT,), float(HERE.rank + 1 + k), device="cuda") for k in range(2)]
    torch.cuda.synchronize()
    order = [0, 1] if HERE.rank % 2 == 0 else [1, 0]
    for _ in range(turns):
        works = []
        for k in order:
            with torch.cuda.stream(streams[k]):
                works.append((k, dist.all_reduce(tensors[k], op=dist.ReduceOp.AVG, group=groups[k], async_op=True)))
        for k, work in works:
            with torch.cuda.stream(streams[k]):
                work.wait()
    torch.cuda.synchronize()
    mean = (HERE.size + 1) / 2
    right = [torch.equal(tensors[k], torch.full_like(tensors[k], mean + k)) for k in range(2)]
    for group in groups:
        dist.destroy_process_group(group)
    return right


def freed_early(turns: int) -> bool:
    """On a rank: a tensor whose owner lets go of it is not used again before the collective has read it."""
    results = []
    for turn in range(turns):
        source = torch.full((COUNT,), float(HERE.rank + turn), device="cuda")
        target = torch.empty(HERE.size * COUNT, device="cuda")
        work = dist.all_gather_into_tensor(target, source, async_op=True)
        del source
        torch.full((COUNT,), -1.0, device="cuda")  # takes the memory, if it were free
        work.wait()
        results.append(target.view(HERE.size, COUNT)[:, -1])
    right = [[float(rank + turn) for rank in range(HERE.size)] for turn in range(turns)]
    return [one.tolist() for one in results] == right


def replayed(turns: int) -> list[bool]:
    """On a rank with a GPU of its own: whether every replay, and every call between, is the sum."""
    torch.cuda.set_device(HERE.rank)
    source, summed = torch.zeros(COUNT, device="cuda"), torch.zeros(COUNT, device="cuda")
    parts = torch.zeros(COUNT // HERE.size, device="cuda")
    dist.all_reduce(summed)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        summed.copy_(source)
        dist.all_reduce(summed)
        dist.reduce_scatter_tensor(parts, source)
    right = []
    for turn in range(turns):
        source.fill_(HERE.rank + turn)
        graph.replay()
        eager = torch.full((64,), 1.0, device="cuda")
        dist.all_reduce(eager)
        total = sum(rank + turn for rank in range(HERE.size))
        right.append([float(one[-1]) for one in (summed, parts, eager)] == [total, total, HERE.size])
    return right


def captured() -> tuple[str, float]:
    """On a rank: why a graph was refused, or '' and what its replay has left; then an ordinary call."""
    tensor, refusal = torch.full((64,), 1.0, device="cuda"), ""
    dist.all_reduce(tensor)
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            dist.all_reduce(tensor)
    except RuntimeError as error:
        refusal = str(error)
    else:
        graph.replay()
    dist.barrier()
    again = torch.full((64,), 1.0, device="cuda")
    dist.all_reduce(again)
    assert float(again[-1]) == HERE.size
    return refusal, float(tensor[-1])


def test_a_call_is_ordered_by_its_stream(world_of):
    turns = 4
    right = [2.0 * (4 * turn + 6) for turn in range(turns)]
    assert world_of(4).run(behind_slow_work, turns) == [right] * 4


def test_two_groups_on_two_streams_both_end(world_of):
    assert world_of(4).run(on_two_streams, 10) == [[True, True]] * 4


def test_tensors_live_until_the_collective_has_passed(world_of):
    assert world_of(2).run(freed_early, 20) == [True, True]


def test_a_graph_is_refused_by_name_or_replayed_right(run_on_fresh_ranks):
    world = run_on_fresh_ranks(2)
    world.join()
    for refusal, last in world.run(captured):
        assert last == 4.0 if not refusal else ("captur" in refusal and last == 2.0), (refusal, last)


@pytest.mark.parametrize("size", [1, 2])
def test_a_graph_is_replayed_among_other_calls(run_on_fresh_ranks, size):
    if torch.cuda.device_count() < size:
        pytest.skip(f"{size} ranks with a GPU of their own need {size} GPUs")
    world = run_on_fresh_ranks(size)
    world.join()
    assert world.run(replayed, 3) == [[True] * 3] * size
