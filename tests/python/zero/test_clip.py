"""clip_grad_norm_ and GradScaler have the same bits at every number of ranks and every stage."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch
from ranks import HERE, on_ranks
from ringdp import _native
from ringdp.ddp.wrapper import DistributedDataParallel
from ringdp.testing import one_process
from ringdp.zero.clip import _terms_of_all_ranks as terms_of_all_ranks
from ringdp.zero.clip import clip_grad_norm_
from ringdp.zero.optimizer import ZeroOptimizer
from ringdp.zero.scaler import GradScaler
from small_models import loss_of
from zero_rig import ADAMW, model, reference, same, values, wrapped

MAX_NORM = 0.05


def clipped(stage: int) -> tuple[list[float], list[float], bool]:
    """On a rank: norms of three clipped steps here and in one process; whether the parameters are equal."""
    ddp = wrapped(stage)
    make = torch.optim.AdamW if stage == 0 else ZeroOptimizer
    own = {"optimizer_class": torch.optim.AdamW} if stage else {}
    optimizer = make(ddp.parameters(), **own, **ADAMW)
    norms, expected = [], []
    for step in range(3):
        optimizer.zero_grad()
        loss_of(ddp, HERE.rank, step, 0).backward()
        norms.append(clip_grad_norm_(ddp.parameters(), MAX_NORM).item())
        optimizer.step()
    plain = model()
    alone = torch.optim.AdamW(plain.parameters(), **ADAMW)

    def clip(_: int) -> None:
        expected.append(clip_grad_norm_(plain.parameters(), MAX_NORM).item())

    one_process(plain, alone, loss_of, ranks=HERE.size, steps=3, on_gradients=clip)
    equal = all(same(a, b) for a, b in zip(values(ddp), plain.parameters(), strict=True))
    return norms, expected, equal


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
@pytest.mark.parametrize("ranks", [1, 3, 4])
def test_norms_and_steps_are_those_of_one_process(world_of, ranks, stage):
    for norms, expected, equal in world_of(ranks).run(clipped, stage):
        assert norms == expected and equal and min(norms) > MAX_NORM


def with_gradients(*gradients: torch.Tensor) -> list[torch.Tensor]:
    parameters = [torch.nn.Parameter(torch.zeros_like(g)) for g in gradients]
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = gradient.clone()
    return parameters


def test_it_does_what_torchs_does():
    source = torch.Generator().manual_seed(4)
    gradients = [torch.randn(40, 50, generator=source), torch.randn(7, generator=source), torch.randn(3, 4).t()]
    ours, theirs = with_gradients(*gradients), with_gradients(*gradients)
    norm = clip_grad_norm_(ours, 0.5)
    assert norm == pytest.approx(float(torch.nn.utils.clip_grad_norm_(theirs, 0.5)), rel=1e-6)
    for a, b in zip(ours, theirs, strict=True):
        assert torch.allclose(a.grad, b.grad, rtol=1e-5)
    small = with_gradients(torch.tensor([3.0, 4.0]))
    assert clip_grad_norm_(small, 100.0) == 5 and torch.equal(small[0].grad, torch.tensor([3.0, 4.0]))
    assert clip_grad_norm_(small[0], 100.0) == 5 and clip_grad_norm_([], 1.0) == 0


@pytest.mark.parametrize("bad", [math.inf, math.nan])
def test_norms_that_are_not_finite(bad):
    parameters = with_gradients(torch.tensor([1.0, bad]), torch.ones(3))
    with pytest.raises(RuntimeError, match="nothing is clipped"):
        clip_grad_norm_(parameters, 1.0, error_if_nonfinite=True)
    assert torch.equal(parameters[1].grad, torch.ones(3))
    assert not math.isfinite(clip_grad_norm_(parameters, 1.0))


def test_ranks_talk_on_the_device_of_the_wrapper(monkeypatch):
    """Their group may have no backend for another one."""

    def on(tensor: torch.Tensor, *_: object, **__: object) -> None:
        raise RuntimeError(f"all_reduce on {tensor.device}")

    monkeypatch.setattr(torch.distributed, "all_reduce", on)
    wrapper = SimpleNamespace(process_group=None, device=torch.device("meta"))
    with pytest.raises(RuntimeError, match="all_reduce on meta"):
        terms_of_all_ranks(wrapper, [])


def test_other_norms_are_refused():
    with pytest.raises(ValueError, match=r"norm_type=1\.0"):
        clip_grad_norm_([], 1.0, norm_type=1.0)


_C = _native.load()
BLOCK = _C.shard_block()
DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.complex64]


@pytest.mark.parametrize("count", [0, 1, BLOCK, 3 * BLOCK + 7])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_blocks_are_their_squares(dtype, count):
    drawn = dtype if dtype.is_complex else torch.float32
    values = torch.randn(count, dtype=drawn, generator=torch.Generator().manual_seed(2)).to(dtype)
    sums = _C.block_squares(values)
    assert sums.dtype == torch.float64 and len(sums) == -(-count // BLOCK)
    for block, sum_ in zip(values.split(BLOCK), sums, strict=False):
        wide = block.to(torch.complex128 if dtype.is_complex else torch.float64)
        assert float(sum_) == pytest.approx(float((wide.abs() ** 2).sum()), rel=1e-12)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_piece_has_the_sums_of_the_whole(dtype):
    drawn = dtype if dtype.is_complex else torch.float32
    values = torch.randn(5 * BLOCK + 3, dtype=drawn, generator=torch.Generator().manual_seed(3)).to(dtype)
    whole = _C.block_squares(values)
    parts = [_C.block_squares(values[: 2 * BLOCK]), _C.block_squares(values[2 * BLOCK :])]
    assert torch.equal(torch.cat(parts), whole)


def test_pieces_are_flat():
    with pytest.raises(RuntimeError, match="must be a contiguous 1-D tensor"):
        _C.block_squares(torch.ones(2, 2))


@pytest.mark.parametrize("stage", [1, 2, 3])
@on_ranks(3, True)
def test_a_scale_changes_no_bit(stage: int) -> bool:
    """Three scaled steps are those without a scale, which is a power of two."""
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
@on_ranks(3, (True, 128.0))
def test_an_overflow_anywhere_skips_the_step_everywhere(stage: int) -> tuple[bool, float]:
    """One gradient is infinite; whether parameters stay, and the scale afterwards."""
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


class WithASmallHalf(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wide = torch.nn.Parameter(torch.ones(5000))
        self.narrow = torch.nn.Parameter(torch.ones(100, dtype=torch.float16))

    def forward(self) -> torch.Tensor:
        return self.wide.sum() + self.narrow.float().sum()


@on_ranks(3, error="float16 gradients are not unscaled")
def test_every_rank_refuses_what_only_one_holds() -> None:
    """One parameter is in float16, and fits into one rank's shard."""
    ddp = DistributedDataParallel(WithASmallHalf(), zero_stage=2)
    optimizer = ZeroOptimizer(ddp.parameters(), torch.optim.SGD, lr=0.1)
    scaler = GradScaler("cpu", init_scale=256.0)
    scaler.scale(ddp()).backward()
    scaler.step(optimizer)
