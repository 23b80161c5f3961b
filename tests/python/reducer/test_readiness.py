"""What has arrived: twice is an error, missing is named, a static graph is counted once and counted down after."""

from __future__ import annotations

import torch
from ranks import HERE
from rig import backward, reducer_of


def twice() -> str:
    """On a rank: two backward passes through one parameter after one forward pass."""
    parameters = [torch.zeros(2, requires_grad=True) for _ in range(2)]
    reducer = reducer_of(parameters)
    reducer.prepare_for_forward()
    reducer.prepare_for_backward([])
    (parameters[1] * 2.0).sum().backward()
    try:
        (parameters[1] * 2.0).sum().backward()
    except RuntimeError as error:
        return str(error)
    return ""


def test_a_gradient_that_arrives_twice_is_named(world_of):
    said = world_of(1).run(twice)[0]
    assert "mark a variable ready only once" in said and "index 1 with name p1" in said


def in_parts() -> bool:
    """On a rank: one forward pass, two backward passes through disjoint parameters: one reduction."""
    parameters = [torch.zeros(2, requires_grad=True) for _ in range(2)]
    reducer = reducer_of(parameters)
    reducer.prepare_for_forward()
    reducer.prepare_for_backward([])
    for index in (1, 0):
        (parameters[index] * (HERE.rank + index)).sum().backward()
    reducer.check_finished()
    return [p.grad.tolist() for p in parameters] == [[1.0, 1.0], [2.0, 2.0]]


def test_parts_of_a_graph_may_be_differentiated_one_by_one(trio):
    assert trio.run(in_parts) == [True] * 3


def static_counts() -> tuple[list[float], list[float], str]:
    """On a rank: a parameter that is used by two reentrant passes; then by three, which is another graph."""
    parameters = [torch.zeros(2, requires_grad=True) for _ in range(2)]
    reducer = reducer_of(parameters)
    reducer.set_static_graph()

    def step(passes: int) -> list[float]:
        for p in parameters:
            p.grad = None
        reducer.prepare_for_forward()
        reducer.rebuild_buckets()
        reducer.prepare_for_backward([])
        for _ in range(passes):
            (parameters[0] * (HERE.rank + 1)).sum().backward()
        (parameters[1] * 1.0).sum().backward()
        reducer.delay_all_reduce() if reducer.expects_gradients() else None
        return parameters[0].grad.tolist()

    first, second = step(2), step(2)
    try:
        step(3)
    except RuntimeError as error:
        return first, second, str(error)
    return first, second, ""


def test_a_static_graph_waits_for_as_many_firings_as_in_its_first_pass(world_of):
    for first, second, said in world_of(2).run(static_counts):
        assert first == second == [3.0, 3.0]
        assert "training graph has changed" in said and "p0" in said


def orders() -> list[list[int]]:
    """On a rank: the order in which gradients of two steps arrived."""
    parameters = [torch.zeros(2, requires_grad=True) for _ in range(3)]
    reducer = reducer_of(parameters)
    seen = []
    for order in ([1, 0, 2], [0, 2, 1]):
        reducer.prepare_for_forward()
        reducer.prepare_for_backward([])
        for index in order:
            parameters[index].sum().backward()
        seen.append(reducer.arrival_order())
    return seen


def test_the_order_of_arrival_is_known(world_of):
    assert world_of(2).run(orders) == [[[1, 0, 2], [0, 2, 1]]] * 2


def missing() -> str:
    parameters = [torch.zeros(2, requires_grad=True) for _ in range(3)]
    reducer = reducer_of(parameters)
    backward(reducer, parameters, [None, torch.ones(2), None])
    try:
        reducer.check_finished()
    except RuntimeError as error:
        return str(error)
    return ""


def test_what_did_not_arrive_is_named(world_of):
    assert "did not receive grad for rank 0: p0, p2" in world_of(1).run(missing)[0]
