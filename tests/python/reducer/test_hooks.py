"""Autograd hooks: when they fire, removal, and what a graph walk finds unreachable."""

from __future__ import annotations

import torch
from rig import backward, reducer_of


def fires_after_accumulation() -> list[float]:
    """On a rank: a second backward pass under the first one's .grad; the reducer sees the sum."""
    parameter = torch.zeros(3, requires_grad=True)
    reducer = reducer_of([parameter])
    (parameter * 2.0).sum().backward()  # not expected: only adds up
    backward(reducer, [parameter], [torch.full((3,), 5.0)])
    return parameter.grad.tolist()


def test_a_hook_fires_when_grad_is_complete(world_of):
    assert world_of(2).run(fires_after_accumulation) == [[7.0] * 3] * 2


def removed() -> tuple[list[float], bool]:
    """On a rank: after removal a backward pass is local and leaves nothing open."""
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


def test_removed_hooks_do_nothing(world_of):
    assert world_of(2).run(removed) == [([8.0] * 3, True)] * 2


def unreachable() -> list[list[int]]:
    """On a rank: unused parameters of three graphs, one of whose outputs is a parameter itself."""
    parameters = [torch.zeros(2, requires_grad=True) for _ in range(4)]
    reducer = reducer_of(parameters, find_unused=True)
    shared = parameters[0] * parameters[2]
    found = []
    for outputs in ([shared], [shared + parameters[1], parameters[3]], []):
        reducer.prepare_for_forward()
        reducer.prepare_for_backward(outputs)
        found.append(reducer.unused())
    return found


def test_the_walk_finds_what_no_output_reaches(world_of):
    assert world_of(1).run(unreachable) == [[[1, 3], [], [0, 1, 2, 3]]]
