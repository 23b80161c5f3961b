"""Clipping: right, and the same bits at every stage, number of ranks and in one process."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch
from ranks import HERE
from ringdp.testing import one_process
from ringdp.zero.clip import _everyones_terms as everyones_terms
from ringdp.zero.clip import clip_grad_norm_
from ringdp.zero.optimizer import ZeroOptimizer
from small_models import loss_of
from zero_rig import ADAMW, model, same, values, wrapped

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
        everyones_terms(wrapper, [])


def test_other_norms_are_refused():
    with pytest.raises(ValueError, match=r"norm_type=1\.0"):
        clip_grad_norm_([], 1.0, norm_type=1.0)
