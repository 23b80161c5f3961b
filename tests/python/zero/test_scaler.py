"""Loss scaling: what one rank's shard has found stops all ranks, and what is finite is unscaled."""

from __future__ import annotations

import pytest
import torch
from ranks import HERE
from ringdp.ddp.wrapper import DistributedDataParallel
from ringdp.zero.optimizer import ZeroOptimizer
from ringdp.zero.scaler import GradScaler
from small_models import loss_of
from zero_rig import ADAMW, reference, same, values, wrapped


def scaled(stage: int) -> bool:
    """On a rank: three scaled steps are those without a scale, which is a power of two."""
    ddp = wrapped(stage)
    optimizer = ZeroOptimizer(ddp.parameters(), torch.optim.AdamW, **ADAMW)
    scaler = GradScaler("cpu", init_scale=256.0)
    for step in range(3):
        optimizer.zero_grad()
        scaler.scale(loss_of(ddp, HERE.rank, step, 0)).backward()
        scaler.step(optimizer)
        scaler.update()
    plain, _ = reference("AdamW", 3, ADAMW)
    return all(same(a, b) for a, b in zip(values(ddp), plain.parameters(), strict=True))


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_a_scale_changes_no_bit(trio, stage):
    assert trio.run(scaled, stage) == [True] * 3


def overflowing(stage: int) -> tuple[bool, float]:
    """On a rank: one gradient is infinite; whether parameters stay, and the scale afterwards."""
    ddp = wrapped(stage)
    optimizer = ZeroOptimizer(ddp.parameters(), torch.optim.AdamW, **ADAMW)
    before = values(ddp)
    scaler = GradScaler("cpu", init_scale=256.0)
    loss = loss_of(ddp, HERE.rank, 0, 0)
    weight = ddp.module[0].weight
    weight.register_hook(lambda g: g.index_fill(0, torch.tensor([0]), float("inf")))
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    return all(same(a, b) for a, b in zip(values(ddp), before, strict=True)), scaler.get_scale()


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_an_overflow_anywhere_skips_the_step_everywhere(trio, stage):
    assert trio.run(overflowing, stage) == [(True, 128.0)] * 3


class WithASmallHalf(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wide = torch.nn.Parameter(torch.ones(5000))
        self.narrow = torch.nn.Parameter(torch.ones(100, dtype=torch.float16))

    def forward(self) -> torch.Tensor:
        return self.wide.sum() + self.narrow.float().sum()


def with_a_small_half() -> None:
    """On a rank: one parameter is in float16, and fits into one rank's shard."""
    ddp = DistributedDataParallel(WithASmallHalf(), zero_stage=2)
    optimizer = ZeroOptimizer(ddp.parameters(), torch.optim.SGD, lr=0.1)
    scaler = GradScaler("cpu", init_scale=256.0)
    scaler.scale(ddp()).backward()
    scaler.step(optimizer)


def test_every_rank_refuses_what_only_one_holds(trio):
    for outcome in trio.attempt(with_a_small_half):
        assert "float16 gradients are not unscaled" in outcome.error
