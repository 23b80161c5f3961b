"""Where a piece's gradient comes from: .grad or a shard; absent ones, and sparse ones by name."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from ranks import HERE
from ringdp.zero.flat import FlatParameters, bucketed
from ringdp.zero.gradients import ShardedGradients, WholeGradients
from ringdp.zero.optimizer import ZeroOptimizer
from small_models import loss_of
from zero_rig import ADAMW, same, wrapped


def of_pieces(gradient: str) -> list[bool]:
    """On a rank: gradients of its pieces of one parameter."""
    own = [torch.nn.Parameter(torch.zeros(4, 900).t()), torch.nn.Parameter(torch.zeros(3))]
    flat = FlatParameters(own, bucketed(own, 1 << 20, HERE.size), dist.group.WORLD)
    values = torch.arange(3600.0).view(900, 4)
    if gradient == "sparse":
        own[0].grad = values.to_sparse()
    elif gradient == "other strides":
        own[0].grad = values
    WholeGradients().check(flat)
    found = WholeGradients().by_bucket(flat)(0)
    order = values.t().flatten()
    return [same(g, order[flat.pieces[number].part]) for number, g in found.items()]


def test_gradients_lie_as_parameters_do(trio):
    said = trio.run(of_pieces, "other strides")
    assert all(map(all, said)) and sum(map(len, said)) == 2  # two ranks hold parts of it
    assert trio.run(of_pieces, "none") == [[]] * 3


def test_sparse_gradients_are_refused(pair):
    outcomes = pair.attempt(of_pieces, "sparse")
    assert "is sparse, and a sparse gradient has no shards" in outcomes[0].error


def dropped() -> tuple[int, int, int]:
    """On a rank: how many gradients there are before, and after either way to drop them."""
    ddp = wrapped(2)
    optimizer = ZeroOptimizer(ddp.parameters(), torch.optim.AdamW, **ADAMW)
    counts = []
    for drop in (optimizer.zero_grad, ddp.zero_grad):
        loss_of(ddp, HERE.rank, 0, 0).backward()
        counts.append(len(optimizer.shard_grads()))
        drop()
        counts.append(len(optimizer.shard_grads()))
    assert isinstance(optimizer._sources[0], ShardedGradients)
    return counts[0], counts[1], counts[3]


def test_zero_grad_drops_shards(trio):
    for before, *after in trio.run(dropped):
        assert before > 0 and after == [0, 0]


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_shard_grads_are_parts_of_the_mean(trio, stage):
    totals = trio.run(squares, stage)
    expected = trio.run(squares, 0)[0]
    assert sum(totals) == pytest.approx(expected, rel=1e-6)


def squares(stage: int) -> float:
    """On a rank: the sum of squares of the gradients that it has."""
    ddp = wrapped(stage)
    optimizer = ZeroOptimizer(ddp.parameters(), torch.optim.AdamW, **ADAMW) if stage else None
    loss_of(ddp, HERE.rank, 0, 0).backward()
    gradients = optimizer.shard_grads() if optimizer else [p.grad for p in ddp.parameters()]
    return sum(float(g.double().square().sum()) for g in gradients)
