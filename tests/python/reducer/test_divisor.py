"""What the sum is divided by: ranks, an agreed number, and numbers that cannot be."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from ranks import HERE, group_of
from rig import backward, folded, gradients, reducer_of, same_bits


def divided_by(own: float, backend: str) -> bool:
    """On a rank: an all_reduce that is under way gives the divisor of one step; the next is divided by the ranks."""
    parameter = torch.zeros(50, requires_grad=True)
    reducer = reducer_of([parameter], backend)
    inputs = [gradients(rank, [[50]])[0] for rank in range(HERE.size)]
    number = torch.tensor([own * (HERE.rank + 1)], dtype=torch.float64)
    reducer.ask_divisor(dist.all_reduce(number, group=group_of(backend), async_op=True))
    backward(reducer, [parameter], [inputs[HERE.rank]])
    first = same_bits(parameter.grad, folded(inputs, own * 6))
    parameter.grad = None
    backward(reducer, [parameter], [inputs[HERE.rank]])
    return first and same_bits(parameter.grad, folded(inputs, 3))


@pytest.mark.parametrize("backend", ["ringdp", "gloo"])
@pytest.mark.parametrize("own", [1.0, 7.5])
def test_an_agreed_number_divides_once(trio, own, backend):
    assert trio.run(divided_by, own, backend) == [True] * 3


def refused(own: float) -> str:
    parameter = torch.zeros(5, requires_grad=True)
    reducer = reducer_of([parameter])
    reducer.ask_divisor(dist.all_reduce(torch.tensor([own], dtype=torch.float64), async_op=True))
    try:
        backward(reducer, [parameter], [torch.ones(5)])
    except RuntimeError as error:
        reducer.reset()
        return str(error)
    return ""


@pytest.mark.parametrize("own", [0.0, float("nan"), -1.0])
def test_a_sum_that_is_no_divisor_is_refused_by_value(world_of, own):
    for said in world_of(2).run(refused, own):
        assert "weights of all ranks sum up to" in said
