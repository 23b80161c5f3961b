"""Hooks of autograd, when they fire and what a graph walk finds unreachable, and communication hooks."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from ranks import HERE, error_of, on_ranks
from rig import backward, reducer_of


@on_ranks(2, [7.0] * 3)
def test_a_hook_fires_when_grad_is_complete() -> list[float]:
    """A second backward pass under the first one's .grad; the reducer sees the sum."""
    parameter = torch.zeros(3, requires_grad=True)
    reducer = reducer_of([parameter])
    (parameter * 2.0).sum().backward()  # not expected: only adds up
    backward(reducer, [parameter], [torch.full((3,), 5.0)])
    return parameter.grad.tolist()


@on_ranks(2, ([8.0] * 3, True))
def test_removed_hooks_do_nothing() -> tuple[list[float], bool]:
    """After removal a backward pass is local and leaves nothing open."""
    parameter = torch.zeros(3, requires_grad=True)
    reducer = reducer_of([parameter])
    reducer.remove_hooks()
    reducer.remove_hooks()
    reducer.prepare_for_forward()
    reducer.prepare_for_backward([])
    (parameter * 4.0).sum().backward()
    reducer.check_finished()
    del reducer
    (parameter * 4.0).sum().backward()
    return parameter.grad.tolist(), True


@on_ranks(1, [[1, 3], [], [0, 1, 2, 3]])
def test_the_walk_finds_what_no_output_reaches() -> list[list[int]]:
    """Unused parameters of three graphs, one of whose outputs is a parameter itself."""
    parameters = [torch.zeros(2, requires_grad=True) for _ in range(4)]
    reducer = reducer_of(parameters, find_unused=True)
    shared = parameters[0] * parameters[2]
    found = []
    for outputs in ([shared], [shared + parameters[1], parameters[3]], []):
        reducer.prepare_for_forward()
        reducer.prepare_for_backward(outputs)
        found.append(reducer.unused())
    return found


# Communication hooks: what they see, what becomes of what they return, how they fail.


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


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        ("raises", "said the hook"),
        ("fails", "said the hook"),
        ("short", "2 elements, and should hold 4"),
        ("second", "can only be called once"),
    ],
)
@on_ranks(1)
def test_a_failing_hook_says_so(kind: str, says: str) -> None:
    """A hook that raises, whose Future fails, or that returns too little; and a second hook."""
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
    with pytest.raises((RuntimeError, ValueError), match=says):
        if kind == "second":
            reducer.register_comm_hook(None, hook)
        backward(reducer, [parameter], [torch.ones(4)])


@on_ranks(3, True)
def test_hooks_may_communicate() -> bool:
    """A hook that sums asynchronously, over ringdp, with a continuation."""
    parameters = [torch.zeros(100, requires_grad=True) for _ in range(3)]
    reducer = reducer_of(parameters, bucket_limits=[1])

    def hook(_: None, bucket: dist.GradBucket) -> torch.futures.Future:
        future = dist.all_reduce(bucket.buffer(), async_op=True).get_future()
        return future.then(lambda done: done.value()[0] / HERE.size)

    reducer.register_comm_hook(None, hook)
    backward(reducer, parameters, [torch.full((100,), float(HERE.rank)) for _ in parameters])
    return all(bool((p.grad == 1.0).all()) for p in parameters)


@on_ranks(2, True)
def test_a_hook_that_asks_its_own_reducer_is_told() -> bool:
    """In the middle of a pass it would wait for itself."""
    parameter = torch.zeros(3, requires_grad=True)
    reducer = reducer_of([parameter])
    said: list[str] = []

    def hook(_: object, bucket: dist.GradBucket) -> torch.futures.Future:
        said.append(error_of(reducer.timeline))
        done: torch.futures.Future = torch.futures.Future()
        done.set_result(bucket.buffer())
        return done

    reducer.register_comm_hook(None, hook)
    backward(reducer, [parameter], [torch.ones(3)])
    return len(said) == 1 and "asked by a hook or a signal handler" in said[0] and reducer.timeline()["step"] == 1
