"""What a reducer notes during one pass: which gradients arrived, which parameters take part, the divisor."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from ranks import HERE, error_of, group_of, on_ranks
from rig import backward, folded, gradients, reducer_of, same_bits


@on_ranks(1, error=("mark a variable ready only once", "index 1 with name p1"))
def test_a_gradient_that_arrives_twice_is_named() -> None:
    """Two backward passes through one parameter after one forward pass."""
    parameters = [torch.zeros(2, requires_grad=True) for _ in range(2)]
    reducer = reducer_of(parameters)
    reducer.prepare_for_forward()
    reducer.prepare_for_backward([])
    (parameters[1] * 2.0).sum().backward()
    (parameters[1] * 2.0).sum().backward()


@on_ranks(3, True)
def test_parts_of_a_graph_may_be_differentiated_one_by_one() -> bool:
    """One forward pass, two backward passes through disjoint parameters: one reduction."""
    parameters = [torch.zeros(2, requires_grad=True) for _ in range(2)]
    reducer = reducer_of(parameters)
    reducer.prepare_for_forward()
    reducer.prepare_for_backward([])
    for index in (1, 0):
        (parameters[index] * (HERE.rank + index)).sum().backward()
    reducer.check_finished()
    return [p.grad.tolist() for p in parameters] == [[1.0, 1.0], [2.0, 2.0]]


@on_ranks(2)
def test_a_static_graph_waits_for_as_many_firings_as_in_its_first_pass() -> None:
    """A parameter that is used by two reentrant passes; then by three, which is another graph."""
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

    assert step(2) == step(2) == [3.0, 3.0]
    said = error_of(step, 3)
    assert "training graph has changed" in said and "p0" in said


@on_ranks(2, [[1, 0, 2], [0, 2, 1]])
def test_the_order_of_arrival_is_known() -> list[list[int]]:
    """The order in which gradients of two steps arrived."""
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


@on_ranks(1, error="did not receive grad for rank 0: p0, p2")
def test_what_did_not_arrive_is_named() -> None:
    parameters = [torch.zeros(2, requires_grad=True) for _ in range(3)]
    reducer = reducer_of(parameters)
    backward(reducer, parameters, [None, torch.ones(2), None])
    reducer.check_finished()


# Parameters nobody has used keep their .grad; those that somebody has used get the mean everywhere.


@pytest.mark.parametrize("as_view", [False, True])
@on_ranks(3, [None, [1.0, 1.0], [3.0, 3.0], [7.0, 7.0], [7.0, 7.0], [10.0, 10.0]])
def test_usage_is_agreed_by_all_ranks_in_every_step(as_view: bool) -> list[object]:
    """.grad of a parameter used by nobody, by rank 1 only, by all; then with a .grad from before."""
    parameters = [torch.zeros(2, requires_grad=True) for _ in range(3)]
    reducer = reducer_of(parameters, find_unused=True, gradient_as_bucket_view=as_view)
    ones = torch.ones(2)
    given = [None, 3 * ones if HERE.rank == 1 else None, 3 * ones]
    backward(reducer, parameters, given)
    first = [None if p.grad is None else p.grad.tolist() for p in parameters]
    for parameter in parameters:
        parameter.grad = 7 * ones
    given = [None, None, 3 * ones]
    backward(reducer, parameters, given)
    return first + [p.grad.tolist() for p in parameters]


@on_ranks(3, [6.0, 6.0])
def test_micro_batches_count() -> list[float]:
    """A parameter that only a micro-batch under no_sync has used counts as used."""
    parameters = [torch.zeros(2, requires_grad=True) for _ in range(2)]
    reducer = reducer_of(parameters, find_unused=True)
    (parameters[0] * 6.0).sum().backward()
    backward(reducer, parameters, [None, torch.ones(2)])
    return parameters[0].grad.tolist()


# What the sum is divided by: ranks, an agreed number, and numbers that cannot be.


@pytest.mark.parametrize("backend", ["ringdp", "gloo"])
@pytest.mark.parametrize("own", [1.0, 7.5])
@on_ranks(3, True)
def test_an_agreed_number_divides_once(own: float, backend: str) -> bool:
    """An all_reduce that is under way gives the divisor of one step; the next is divided by the ranks."""
    parameter = torch.zeros(50, requires_grad=True)
    reducer = reducer_of([parameter], backend)
    inputs = [gradients(rank, [[50]])[0] for rank in range(HERE.size)]
    number = torch.tensor([own * (HERE.rank + 1)], dtype=torch.float64)
    reducer.set_divisor_work(dist.all_reduce(number, group=group_of(backend), async_op=True))
    backward(reducer, [parameter], [inputs[HERE.rank]])
    first = same_bits(parameter.grad, folded(inputs, own * 6))
    parameter.grad = None
    backward(reducer, [parameter], [inputs[HERE.rank]])
    return first and same_bits(parameter.grad, folded(inputs, 3))


@pytest.mark.parametrize("own", [0.0, float("nan"), -1.0])
@on_ranks(2)
def test_a_sum_that_is_no_divisor_is_refused_by_value(own: float) -> None:
    parameter = torch.zeros(5, requires_grad=True)
    reducer = reducer_of([parameter])
    reducer.set_divisor_work(dist.all_reduce(torch.tensor([own], dtype=torch.float64), async_op=True))
    with pytest.raises(RuntimeError, match="weights of all ranks sum up to"):
        backward(reducer, [parameter], [torch.ones(5)])
    reducer.reset()
