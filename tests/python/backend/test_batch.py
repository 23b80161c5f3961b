"""The Work of several collectives: waits, results, Futures and errors."""

from __future__ import annotations

from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from ranks import HERE


def finished() -> tuple[bool, list[float], list[float]]:
    """On a rank: a batch of three sums, waited for with a timeout; result() and Future."""
    tensors = [torch.full((1000 * i,), float(HERE.rank)) for i in range(1, 4)]
    work = dist.group.WORLD.allreduce_coalesced(tensors, dist.AllreduceCoalescedOptions())
    work.wait(timedelta(seconds=30))
    done = work.is_completed() and work.is_success()
    return done, [float(tensor[0]) for tensor in work.get_future().wait()], [float(t[-1]) for t in work.result()]


def through_torch() -> list[float]:
    """On a rank: torch gives a Future of the coalesced form; its callbacks see all results."""
    tensors = [torch.full((1000 * i,), float(HERE.rank)) for i in range(1, 4)]
    future = dist.all_reduce_coalesced(tensors, async_op=True)
    return future.then(lambda done: [float(tensor[0]) for tensor in done.value()]).wait()


def torn() -> tuple[str, bool]:
    """On a rank: rank 1 aborts instead of joining a batch."""
    group = dist.new_group(range(HERE.size))
    backend = group._get_backend(torch.device("cpu"))
    said, success = "", False
    if HERE.rank == 1:
        backend.abort()
    else:
        # The abort may come before the first call, then it is the call that fails.
        with pytest.raises(dist.DistBackendError) as error:
            work = group.allreduce_coalesced([torch.ones(10)] * 3, dist.AllreduceCoalescedOptions())
            try:
                work.wait()
            finally:
                success = work.is_success()
        said = str(error.value)
    dist.barrier()
    dist.destroy_process_group(group)
    return said, success


def test_results_of_all(trio):
    assert trio.run(finished) == [(True, [3.0] * 3, [3.0] * 3)] * 3


def test_callbacks_see_all_results(trio):
    assert trio.run(through_torch) == [[3.0] * 3] * 3


def test_an_error_of_one_is_the_error_of_all(trio):
    outcomes = trio.run(torn)
    for said, success in (outcomes[0], outcomes[2]):
        assert "rank 1 aborted" in said and not success
