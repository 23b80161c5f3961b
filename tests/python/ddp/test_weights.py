"""backward(loss_sum, weight=n): the exact mean over samples, also with empty shards and accumulation."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from ranks import BACKENDS, HERE, error_of, group_of, on_ranks
from ringdp.ddp import weights
from ringdp.ddp.wrapper import DistributedDataParallel
from ringdp.testing import one_process, parameters_hash
from small_models import fresh, loss_of, optimizer_for

STEPS = 3


def samples(rank: int, step: int, micro: int, empty: int) -> int:
    return 0 if rank == empty else 1 + (3 * rank + step + 2 * micro) % 6


@pytest.mark.parametrize("micros", [1, 3])
@pytest.mark.parametrize(("empty", "forward_anyway"), [(-1, False), (1, False), (1, True), (0, False)])
@pytest.mark.parametrize("backend", BACKENDS)
@on_ranks(3, True)
def test_uneven_shards_have_the_bits_of_one_process(
    backend: str, empty: int, micros: int, forward_anyway: bool
) -> bool:
    """Training with unequal micro-batches ends with the bits of one process."""

    def summed(model: torch.nn.Module, rank: int, step: int, micro: int) -> torch.Tensor:
        return loss_of(model, rank, step, micro, samples(rank, step, micro, empty), "sum")

    ddp = DistributedDataParallel(fresh(), process_group=group_of(backend), bucket_cap_mb=0.001)
    optimizer = optimizer_for(ddp)
    for step in range(STEPS):
        optimizer.zero_grad()
        for micro in range(micros):
            own = samples(HERE.rank, step, micro, empty)
            ddp.require_backward_grad_sync = micro == micros - 1
            loss = summed(ddp, HERE.rank, step, micro) if own or forward_anyway else None
            ddp.backward(loss, weight=own)
        optimizer.step()
    model = fresh()
    one_process(
        model,
        optimizer_for(model),
        summed,
        ranks=HERE.size,
        steps=STEPS,
        accumulate=micros,
        weights=lambda rank, step: sum(samples(rank, step, k, empty) for k in range(micros)),
    )
    return parameters_hash(ddp) == parameters_hash(model)


@on_ranks(1)
def test_bad_weights_are_named() -> None:
    ddp = DistributedDataParallel(fresh())
    loss = ddp(torch.ones(1, 12)).sum()
    hooked = DistributedDataParallel(fresh())
    hooked._register_builtin_comm_hook(dist.BuiltinCommHookType.ALLREDUCE)
    model = fresh()
    delayed = DistributedDataParallel(
        model, delay_all_reduce_named_params=[("4.weight", model[4].weight)], param_to_hook_all_reduce=model[0].weight
    )
    static = DistributedDataParallel(fresh(), static_graph=True)
    for wrapper, arguments, why in [
        (ddp, (loss, -1), "weight=-1"),
        (ddp, (loss, float("nan")), "weight=nan"),
        (ddp, (None, 3), "without a loss"),
        (ddp, (None,), "no loss"),
        (hooked, (loss, 1), "communication hook"),
        (delayed, (loss, 1), "delay_all_reduce"),
        (static, (None, 0), "every rank needs a loss"),
    ]:
        assert why in error_of(wrapper.backward, *arguments, kind=(ValueError, RuntimeError))
    with pytest.raises(ValueError, match=r"under join\(\)"), ddp.join():
        ddp.backward(loss, 1)


@on_ranks(3, [6.0, 6.0, 2.0, True, True])
def test_weights_go_with_their_gradients() -> list[float | bool]:
    """What micro-batches that were thrown away, and forward passes under no_sync, leave behind: nothing."""
    ddp = DistributedDataParallel(torch.nn.Linear(1, 1, bias=False))
    x = torch.full((1, 1), 6.0)
    right: list[float | bool] = []
    for factor, set_to_none in ((1, True), (1, False), (0, None)):  # the last is a gradient of 0, which counts
        with ddp.no_sync():
            ddp.backward(ddp(x).sum() * factor, weight=100 if factor else 2)
        if set_to_none is not None:
            ddp.zero_grad(set_to_none)
        ddp.backward(ddp(x).sum(), weight=1)
        right.append(ddp.module.weight.grad.item())
        ddp.zero_grad()
    loss = ddp(x).sum()
    with ddp.no_sync():  # the forward pass decides
        ddp.backward(loss, weight=2)
    right.append(ddp.module.weight.grad.item() == 3.0)
    ddp.zero_grad()
    with ddp.no_sync():
        loss = ddp(x).sum()
    ddp.backward(loss, weight=3)
    ddp.backward(ddp(x).sum(), weight=1)
    right.append(ddp.module.weight.grad.item() == 3.0)
    return right


@on_ranks(3, True)
def test_without_weight_it_is_backward() -> bool:
    """Without a weight it is loss.backward()."""
    ddp = DistributedDataParallel(torch.nn.Linear(1, 1, bias=False))
    ddp.backward(ddp(torch.full((1, 1), float(HERE.rank))).sum())
    return ddp.module.weight.grad.item() == 1.0


@on_ranks(3, 2.0)
def test_sparse_gradients_have_weights() -> float:
    """Two of three ranks' samples use a row, each once in a pass of two samples; and it runs twice."""
    ddp = DistributedDataParallel(torch.nn.Embedding(4, 1, sparse=True))
    for _ in range(2):
        ddp.zero_grad()
        ddp.backward(9 * ddp(torch.tensor([int(HERE.rank > 0), 2])).sum(), weight=3)
    return ddp.module.weight.grad.to_dense()[1].item()


@on_ranks(3, 1)
def test_weighted_passes_are_counted_for_those_who_watch() -> int:
    before = weights.passes
    ddp = DistributedDataParallel(fresh())
    ddp.backward(ddp(torch.ones(1, 12)).sum(), weight=1)
    ddp.backward(ddp(torch.ones(1, 12)).sum())
    return weights.passes - before


@pytest.mark.parametrize("stage", [0, 1, 2])
@on_ranks(2)
def test_two_synchronised_passes_of_one_step(stage: int) -> None:
    """Below stage 2 the second pass would weigh the mean of the first one anew; from there on means add up."""
    ddp = DistributedDataParallel(torch.nn.Linear(1, 1, bias=False), zero_stage=stage)

    def backward(weight: int) -> str:
        return error_of(ddp.backward, ddp(torch.full((weight, 1), 6.0)).sum(), weight, kind=ValueError)

    assert backward(1) == ""
    said = backward(3)
    assert ("still has the mean of an earlier backward pass" in said) if stage < 2 else said == ""
    for set_to_none in (True, False):
        ddp.zero_grad(set_to_none)
        if stage == 2:
            ddp.reducer.drop_shards()
        assert backward(1) == ""
        if stage < 2:
            assert ddp.module.weight.grad.item() == 6.0
    ddp.zero_grad()
    with ddp.no_sync():
        assert backward(1) == ""
    assert backward(3) == ""
