"""One step: bits, launch order, modes side by side, accumulation, skipped buckets, ranks without a loss."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from ranks import BACKENDS, HERE
from rig import backward, folded, gradients, reducer_of, same_bits

SHAPES = [[40, 3], [7], [300], [1], [64]]


def parameters_of_step() -> list[torch.Tensor]:
    return [torch.zeros(shape, requires_grad=True) for shape in SHAPES]


def all_modes(backend: str) -> list[str]:
    """On a rank: the modes whose mean of two steps differs from one process; there should be none."""
    wrong = []
    flags = (False, True)
    for overlap, as_view, batched, limit in product(flags, flags, flags, (0, 200, 1 << 30)):
        parameters = parameters_of_step()
        reducer = reducer_of(
            parameters,
            backend,
            bucket_limits=[limit],
            overlap=overlap,
            gradient_as_bucket_view=as_view,
            batched_copy=batched,
        )
        for step in range(2):
            inputs = [gradients(rank, SHAPES, seed=step) for rank in range(HERE.size)]
            for parameter in parameters:
                parameter.grad = None
            backward(reducer, parameters, inputs[HERE.rank])
            for index, parameter in enumerate(parameters):
                if not same_bits(parameter.grad, folded([g[index] for g in inputs], HERE.size)):
                    wrong.append(f"{overlap=} {as_view=} {batched=} {limit=} {step=} {index=}")
    return wrong


@pytest.mark.parametrize("backend", BACKENDS)
def test_no_mode_changes_a_bit(trio, backend):
    assert trio.run(all_modes, backend) == [[]] * 3


def accumulated(as_view: bool) -> bool:
    """On a rank: partial sums of three micro-batches first, then their fold (DESIGN 2.2 item 4)."""
    parameters = parameters_of_step()
    reducer = reducer_of(parameters, gradient_as_bucket_view=as_view)
    for step in range(2):
        partial = []
        for rank in range(HERE.size):
            micros = [gradients(rank, SHAPES, seed=10 * step + k) for k in range(3)]
            partial.append([a + b + c for a, b, c in zip(*micros, strict=True)])
        for parameter in parameters:
            parameter.grad = None
        for k in range(3):
            own = gradients(HERE.rank, SHAPES, seed=10 * step + k)
            if k < 2:
                sum((p * g).sum() for p, g in zip(parameters, own, strict=True)).backward()
            else:
                backward(reducer, parameters, own)
        for index, parameter in enumerate(parameters):
            if not same_bits(parameter.grad, folded([g[index] for g in partial], HERE.size)):
                return False
    return True


@pytest.mark.parametrize("as_view", [False, True])
def test_partial_sums_are_folded(trio, as_view):
    assert trio.run(accumulated, as_view) == [True] * 3


def zeroed_in_place() -> bool:
    """On a rank: views that are zeroed, not dropped, between steps: autograd adds into the bucket itself."""
    parameters = parameters_of_step()
    reducer = reducer_of(parameters, gradient_as_bucket_view=True)
    for step in range(3):
        for parameter in parameters:
            if parameter.grad is not None:
                parameter.grad.zero_()
        inputs = [gradients(rank, SHAPES, seed=step) for rank in range(HERE.size)]
        backward(reducer, parameters, inputs[HERE.rank])
    return all(
        same_bits(p.grad + 0.0, folded([g[i] for g in inputs], HERE.size) + 0.0) for i, p in enumerate(parameters)
    )


def test_gradients_may_stay_in_the_bucket(trio):
    assert trio.run(zeroed_in_place) == [True] * 3


def without_loss(absent: int, had_micro_batch: bool) -> bool:
    """On a rank: one rank has no loss in the synchronised step, perhaps gradients from before."""
    parameters = parameters_of_step()
    reducer = reducer_of(parameters, bucket_limits=[200])
    inputs: list[list[torch.Tensor] | None] = [gradients(rank, SHAPES) for rank in range(HERE.size)]
    if HERE.rank != absent:
        backward(reducer, parameters, inputs[HERE.rank])
    else:
        if had_micro_batch:
            sum((p * g).sum() for p, g in zip(parameters, inputs[HERE.rank], strict=True)).backward()
        reducer.prepare_for_forward()
        reducer.rebuild_buckets()
        reducer.prepare_for_backward([])
        reducer.backward_without_loss()
    there = [g if rank != absent or had_micro_batch else None for rank, g in enumerate(inputs)]
    return all(
        same_bits(p.grad, folded([g[i] if g else None for g in there], HERE.size)) for i, p in enumerate(parameters)
    )


@pytest.mark.parametrize("had_micro_batch", [False, True])
@pytest.mark.parametrize("absent", [0, 2])
def test_a_rank_without_a_loss_takes_part(trio, absent, had_micro_batch):
    assert trio.run(without_loss, absent, had_micro_batch) == [True] * 3


def skipped() -> tuple[int, bool]:
    """On a rank: buckets launched when one of two holds only parameters nobody uses; the other's mean."""
    parameters = [torch.zeros(10, requires_grad=True) for _ in range(2)]
    reducer = reducer_of(parameters, bucket_limits=[1], find_unused=True, skip_unused=True)
    backward(reducer, parameters, [torch.full((10,), float(HERE.rank)), None])
    return reducer.numbers()["launched"], parameters[0].grad.tolist() == [1.0] * 10 and parameters[1].grad is None


def test_buckets_of_unused_parameters_can_stay_home(trio):
    assert trio.run(skipped) == [(1, True)] * 3
