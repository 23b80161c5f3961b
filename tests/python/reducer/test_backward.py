"""One step: bits, launch order, modes, accumulation, ranks without a loss; results written back; a joined rank."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from ranks import BACKENDS, HERE, on_ranks
from rig import backward, folded, gradients, reducer_of, same_bits

SHAPES = [[40, 3], [7], [300], [1], [64]]


def parameters_of_step() -> list[torch.Tensor]:
    return [torch.zeros(shape, requires_grad=True) for shape in SHAPES]


@pytest.mark.parametrize("backend", BACKENDS)
@on_ranks(3, [])
def test_no_mode_changes_a_bit(backend: str) -> list[str]:
    """The modes whose mean of two steps differs from one process; there should be none."""
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


@pytest.mark.parametrize("as_view", [False, True])
@on_ranks(3, True)
def test_partial_sums_are_folded(as_view: bool) -> bool:
    """Partial sums of three micro-batches first, then their fold (DESIGN 2.2 item 4)."""
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


@on_ranks(3, True)
def test_gradients_may_stay_in_the_bucket() -> bool:
    """Views that are zeroed, not dropped, between steps: autograd adds into the bucket itself."""
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


@pytest.mark.parametrize("had_micro_batch", [False, True])
@pytest.mark.parametrize("absent", [0, 2])
@on_ranks(3, True)
def test_a_rank_without_a_loss_takes_part(absent: int, had_micro_batch: bool) -> bool:
    """One rank has no loss in the synchronised step, perhaps gradients from before."""
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


@on_ranks(3, (1, True))
def test_buckets_of_unused_parameters_can_stay_home() -> tuple[int, bool]:
    """Buckets launched when one of two holds only parameters nobody uses; the other's mean."""
    parameters = [torch.zeros(10, requires_grad=True) for _ in range(2)]
    reducer = reducer_of(parameters, bucket_limits=[1], find_unused=True, skip_unused=True)
    backward(reducer, parameters, [torch.full((10,), float(HERE.rank)), None])
    return reducer.stats()["launched"], parameters[0].grad.tolist() == [1.0] * 10 and parameters[1].grad is None


# Results in their places: copies or views, and what nobody used keeps its .grad.

WRITTEN = [[4, 3], [5], [6]]


def handed(as_views: bool, preset: bool) -> tuple[list[bool], bool, bool]:
    """On a rank: gradients that are the mean; whether the .grad of a parameter that none uses stays; shared memory."""
    parameters = [torch.nn.Parameter(torch.zeros(shape)) for shape in WRITTEN]
    reducer = reducer_of(parameters, find_unused=True, gradient_as_bucket_view=as_views)
    by_rank = [gradients(rank, WRITTEN) for rank in range(HERE.size)]
    own = by_rank[HERE.rank]
    if preset and not as_views:
        parameters[2].grad = torch.full([6], 7.0)
    backward(reducer, parameters, [own[0], own[1], None])
    means = [folded(of_all, HERE.size) for of_all in zip(*by_rank, strict=True)]
    right = [same_bits(parameters[i].grad, means[i]) for i in range(2)]
    kept = parameters[2].grad is None if not preset or as_views else bool((parameters[2].grad == 7).all())
    together = parameters[0].grad.untyped_storage().data_ptr() == parameters[1].grad.untyped_storage().data_ptr()
    return right, kept, together


@pytest.mark.parametrize("preset", [False, True])
@pytest.mark.parametrize("as_views", [False, True])
def test_means_arrive_and_unused_gradients_stay(trio, as_views, preset):
    assert trio.run(handed, as_views, preset) == [([True, True], True, as_views)] * 3


# A joined rank mirrors the collectives of the others' backward pass and changes none of their bits.

JOINED = [[50], [3], [20]]


def with_one_joined(backend: str, overlap: bool, find_unused: bool, divisor: int) -> bool:
    """On a rank: rank 2 has joined; the others' mean is that of ranks 0 and 1 over `divisor`."""
    parameters = [torch.zeros(shape, requires_grad=True) for shape in JOINED]
    reducer = reducer_of(parameters, backend, bucket_limits=[100], overlap=overlap, find_unused=find_unused)
    inputs = [gradients(rank, JOINED) for rank in (0, 1)]
    if HERE.rank == 2:
        reducer.shadow_backward(float(divisor))
        reducer.assume_arrival()
        return reducer.rebuild_buckets() is not find_unused
    reducer.set_divisor(float(divisor))
    used = [g if i != 1 or not find_unused else None for i, g in enumerate(inputs[HERE.rank])]
    reducer.prepare_for_forward()
    loss = sum((p * g).sum() for p, g in zip(parameters, used, strict=True) if g is not None)
    reducer.prepare_for_backward([loss])
    loss.backward()
    reducer.rebuild_buckets()
    return all(
        p.grad is None if find_unused and i == 1 else same_bits(p.grad, folded([g[i] for g in inputs], divisor))
        for i, p in enumerate(parameters)
    )


@pytest.mark.parametrize("find_unused", [False, True])
@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("backend", BACKENDS)
def test_the_others_have_the_mean_of_the_others(trio, backend, overlap, find_unused):
    assert trio.run(with_one_joined, backend, overlap, find_unused, 2) == [True] * 3
    assert trio.run(with_one_joined, backend, overlap, find_unused, 3) == [True] * 3
