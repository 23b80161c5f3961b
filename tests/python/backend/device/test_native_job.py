"""What devices run themselves, collectives and steps: in the order of streams, and in that of their group alone."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from native import PATIENCE_S, arrive, described
from ranks import HERE
from stand_in import backend_of

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
