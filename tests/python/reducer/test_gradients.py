"""Gradients in and out: views or copies, absent ones, what does not fit."""

from __future__ import annotations

import pytest
import torch
from ranks import HERE
from rig import backward, folded, gradients, reducer_of, same_bits


def identity(as_view: bool) -> tuple[bool, bool, bool]:
    """On a rank: .grad is the same tensor in the second step; two parameters share storage; values are right."""
    parameters = [torch.zeros(8, requires_grad=True) for _ in range(2)]
    reducer = reducer_of(parameters, gradient_as_bucket_view=as_view)
    backward(reducer, parameters, [torch.ones(8), torch.ones(8)])
    first = parameters[0].grad
    share = first.untyped_storage().data_ptr() == parameters[1].grad.untyped_storage().data_ptr()
    backward(reducer, parameters, [torch.ones(8), torch.ones(8)])
    return parameters[0].grad is first, share, bool((first == 2).all())


def test_views_share_the_bucket_and_copies_do_not(trio):
    assert trio.run(identity, True) == [(True, True, True)] * 3
    assert trio.run(identity, False) == [(True, False, True)] * 3


def used_by_some(users: list[int]) -> tuple[bool, bool]:
    """On a rank: a parameter that only `users` have used has the mean of those; the other parameter is as ever."""
    shapes = [[9], [9]]
    inputs = [gradients(rank, shapes) for rank in range(HERE.size)]
    for by_rank in inputs:
        by_rank[1][:3] = -0.0
    parameters = [torch.zeros(9, requires_grad=True) for _ in range(2)]
    reducer = reducer_of(parameters, find_unused=True)
    own = inputs[HERE.rank]
    backward(reducer, parameters, [own[0], own[1] if HERE.rank in users else None])
    of_users = folded([inputs[rank][1] if rank in users else None for rank in range(HERE.size)], HERE.size)
    return same_bits(parameters[0].grad, folded([i[0] for i in inputs], HERE.size)), same_bits(
        parameters[1].grad, of_users
    )


@pytest.mark.parametrize("users", [[0], [1], [2], [1, 2]])
def test_absent_gradients_leave_the_bits_of_the_others(trio, users):
    """Signs of zeros included: adding a plain zero would turn -0.0 into 0.0."""
    assert trio.run(used_by_some, users) == [(True, True)] * 3


def refused() -> str:
    """On a rank: what a sparse gradient of a layer that does not announce it leads to."""
    table = torch.zeros(10, 4, requires_grad=True)
    reducer = reducer_of([table])
    reducer.prepare_for_forward()
    reducer.prepare_for_backward([])
    try:
        torch.nn.functional.embedding(torch.tensor([1]), table, sparse=True).sum().backward()
    except RuntimeError as error:
        return str(error)
    return ""


def test_an_unannounced_sparse_gradient_is_named(world_of):
    assert "gradient of p0 is sparse" in world_of(1).run(refused)[0]


def replaced_view() -> str:
    """On a rank: what a .grad that is no longer the view leads to. The replacing hook runs after the reducer's."""
    parameters = [torch.zeros(4, requires_grad=True) for _ in range(2)]
    reducer = reducer_of(parameters, gradient_as_bucket_view=True)
    accumulator = parameters[1].expand_as(parameters[1]).grad_fn.next_functions[0][0]

    def replace(*_: object) -> None:
        parameters[1].grad = torch.ones(4)

    accumulator.register_hook(replace)
    try:
        backward(reducer, parameters, [torch.ones(4), torch.ones(4)])
    except RuntimeError as error:
        return str(error)
    return ""


def test_a_replaced_view_is_named(world_of):
    assert "gradient_as_bucket_view=True: the .grad of p1" in world_of(1).run(replaced_view)[0]


def data_replaced() -> list[bool]:
    """On a rank: somebody sets .grad.data of views, as torch's mixed precision does; the next means are right."""
    parameters = [torch.zeros(4, requires_grad=True) for _ in range(2)]
    reducer = reducer_of(parameters, gradient_as_bucket_view=True)
    right = []
    for step in range(3):
        inputs = [gradients(rank, [[4], [4]], seed=step) for rank in range(HERE.size)]
        for p in parameters:
            if p.grad is not None:
                p.grad.zero_()
        backward(reducer, parameters, inputs[HERE.rank])
        right += [same_bits(p.grad, folded([i[n] for i in inputs], HERE.size)) for n, p in enumerate(parameters)]
        for p in parameters:
            p.grad.data = p.grad.clone()
    return right


def test_views_survive_that_their_data_is_replaced(trio):
    assert trio.run(data_replaced) == [[True] * 6] * 3


def absent_complex() -> list[bool]:
    """On a rank: rank 1 has no gradient for a complex parameter that is stored column by column; twice."""
    parameters = [torch.zeros(5, 3, dtype=torch.complex64).t().requires_grad_()]
    parameters.append(torch.zeros(4, dtype=torch.complex64, requires_grad=True))
    reducer = reducer_of(parameters, find_unused=True)
    right = []
    for step in range(2):  # the second time the bucket holds the first mean
        inputs = [gradients(rank, [[3, 5], [4]], torch.complex64, seed=step) for rank in range(HERE.size)]
        for p in parameters:
            p.grad = None
        own = inputs[HERE.rank]
        # The gradient of the real part of p * g is the conjugate of g.
        backward(reducer, parameters, [own[0].conj() if HERE.rank != 1 else None, own[1].conj()])
        there = [i[0].resolve_conj() for rank, i in enumerate(inputs) if rank != 1]
        right.append(bool(torch.isclose(parameters[0].grad, sum(there) / 3).all()))
    return right


def test_an_absent_complex_gradient_of_any_stride_is_a_zero(trio):
    assert trio.run(absent_complex) == [[True] * 2] * 3
