"""Parameters nobody has used keep their .grad; those that somebody has used get the mean everywhere."""

from __future__ import annotations

import torch
from ranks import HERE
from rig import backward, reducer_of


def globally_unused(as_view: bool) -> list[object]:
    """On a rank: .grad of a parameter used by nobody, by rank 1 only, by all; then with a .grad from before."""
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


def test_usage_is_agreed_by_all_ranks_in_every_step(trio):
    expected = [None, [1.0, 1.0], [3.0, 3.0], [7.0, 7.0], [7.0, 7.0], [10.0, 10.0]]
    for as_view in (False, True):
        assert trio.run(globally_unused, as_view) == [expected] * 3


def used_before_the_synchronised_step() -> list[float]:
    """On a rank: a parameter that only a micro-batch under no_sync has used counts as used."""
    parameters = [torch.zeros(2, requires_grad=True) for _ in range(2)]
    reducer = reducer_of(parameters, find_unused=True)
    (parameters[0] * 6.0).sum().backward()
    backward(reducer, parameters, [None, torch.ones(2)])
    return parameters[0].grad.tolist()


def test_micro_batches_count(trio):
    assert trio.run(used_before_the_synchronised_step) == [[6.0, 6.0]] * 3
