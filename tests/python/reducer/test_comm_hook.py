"""Communication hooks: what they see, what becomes of what they return, how they fail."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from ranks import HERE
from rig import backward, reducer_of


def seen_by_hook(as_view: bool) -> list[object]:
    """On a rank: what a hook sees of two buckets; the gradients it has replaced by ten times as much."""
    parameters = [torch.zeros(shape, requires_grad=True) for shape in ([2, 3], [4])]
    reducer = reducer_of(parameters, bucket_limits=[1], gradient_as_bucket_view=as_view)
    seen: list[object] = []

    def hook(state: list[object], bucket: dist.GradBucket) -> torch.futures.Future:
        state.append((bucket.index(), bucket.is_last(), [list(g.shape) for g in bucket.gradients()]))
        state.append([p is parameters[1 - bucket.index()] for p in bucket.parameters()])
        future: torch.futures.Future = torch.futures.Future()
        future.set_result(bucket.buffer() * 10)
        return future

    reducer.register_comm_hook(seen, hook)
    backward(reducer, parameters, [torch.full((2, 3), 1.0), torch.full((4,), 2.0)])
    return [*seen, *(p.grad.flatten()[0].item() for p in parameters)]


@pytest.mark.parametrize("as_view", [False, True])
def test_hooks_see_torchs_buckets_and_their_result_counts(world_of, as_view):
    expected = [(0, False, [[4]]), [True], (1, True, [[2, 3]]), [True], 10.0, 20.0]
    assert world_of(2).run(seen_by_hook, as_view) == [expected] * 2


def failing(kind: str) -> str:
    """On a rank: a hook that raises, whose Future fails, or that returns too little; and a second hook."""
    parameter = torch.zeros(4, requires_grad=True)
    reducer = reducer_of([parameter])

    def fail(_: object) -> None:
        raise ValueError("said the hook")

    def hook(_: None, bucket: dist.GradBucket) -> torch.futures.Future:
        if kind == "raises":
            raise ValueError("said the hook")
        future: torch.futures.Future = torch.futures.Future()
        future.set_result(bucket.buffer()[:2])
        return future.then(fail) if kind == "fails" else future

    reducer.register_comm_hook(None, hook)
    try:
        if kind == "second":
            reducer.register_comm_hook(None, hook)
        backward(reducer, [parameter], [torch.ones(4)])
    except (RuntimeError, ValueError) as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        ("raises", "said the hook"),
        ("fails", "said the hook"),
        ("short", "2 elements, the bucket has 4"),
        ("second", "can only be called once"),
    ],
)
def test_a_failing_hook_says_so(world_of, kind, says):
    assert says in world_of(1).run(failing, kind)[0]


def reduced_by_hook() -> bool:
    """On a rank: a hook that sums asynchronously, over ringdp, with a continuation."""
    parameters = [torch.zeros(100, requires_grad=True) for _ in range(3)]
    reducer = reducer_of(parameters, bucket_limits=[1])

    def hook(_: None, bucket: dist.GradBucket) -> torch.futures.Future:
        future = dist.all_reduce(bucket.buffer(), async_op=True).get_future()
        return future.then(lambda done: done.value()[0] / HERE.size)

    reducer.register_comm_hook(None, hook)
    backward(reducer, parameters, [torch.full((100,), float(HERE.rank)) for _ in parameters])
    return all(bool((p.grad == 1.0).all()) for p in parameters)


def test_hooks_may_communicate(trio):
    assert trio.run(reduced_by_hook) == [True] * 3
