"""Gradients that share a bucket are copied into it and out of it, whatever their layout, dtype and size."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from ranks import HERE
from ringdp.ddp.wrapper import DistributedDataParallel

KIB = 1 << 10
EDGE = 64 * KIB  # bytes from which copies go past the caches
Gradient = Callable[[torch.Tensor], torch.Tensor]


def plain(size: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.arange(size).remainder(251).to(dtype)


# name: the parameter, and what backward makes of contiguous values of its shape
CASES: dict[str, tuple[torch.Tensor, Gradient]] = {
    "below the edge": (plain(EDGE // 4 - 1), lambda g: g),
    "at the edge": (plain(EDGE // 4), lambda g: g),
    "odd length": (plain(EDGE // 4 + 17), lambda g: g),
    "odd length of 2 bytes": (plain(EDGE + 3, torch.bfloat16), lambda g: g),
    "8 bytes": (plain(EDGE, torch.float64), lambda g: g),
    "larger than one thread's part": (plain(EDGE * 5 + 1), lambda g: g),
    "transposed parameter": (plain(EDGE).view(256, 256).t(), lambda g: g.t().contiguous().t()),
    "transposed gradient": (plain(EDGE).view(256, 256), lambda g: g.t().contiguous().t()),
    "channels last": (plain(EDGE).view(2, 8, 64, 64).to(memory_format=torch.channels_last), lambda g: g),
    "with holes": (plain(2 * EDGE)[::2], lambda g: g),
    "expanded": (plain(EDGE), lambda g: g[:1].expand(EDGE)),
    "complex": (plain(EDGE, torch.complex64), lambda g: g * (1 + 2j)),
    "conjugate, not materialised": (plain(EDGE, torch.complex64), lambda g: (g * (1 + 2j)).conj()),
    "negative, not materialised": (plain(EDGE), lambda g: torch._neg_view(g)),
    "zero, without memory": (plain(EDGE), lambda g: torch._efficientzerotensor(g.shape)),
    "a view at an odd place": (plain(EDGE), lambda g: torch.cat([g[:1], g])[1:]),
}


class Odd(torch.autograd.Function):
    """Its gradient is `make` of values that depend on the rank."""

    @staticmethod
    def forward(ctx, parameter: torch.Tensor, make: Gradient, factor: int) -> torch.Tensor:
        ctx.make, ctx.factor, ctx.like = make, factor, parameter.detach()
        return parameter.detach().real.sum()

    @staticmethod
    def backward(ctx, loss: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        return ctx.make(ctx.like.contiguous() * ctx.factor), None, None


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.all = torch.nn.ParameterList(torch.nn.Parameter(start.clone()) for start, _ in CASES.values())

    def forward(self, factor: int) -> torch.Tensor:
        made = zip(self.all, CASES.values(), strict=True)
        return torch.stack([Odd.apply(p, make, factor).double() for p, (_, make) in made]).sum()


def wrong_gradients(views: bool, batched: bool, keep: bool) -> list[str]:
    """On a rank: the cases whose .grad is not the mean, after each of two steps."""
    model = Model()
    ddp = DistributedDataParallel(model, bucket_cap_mb=64, gradient_as_bucket_view=views, batched_grad_copy=batched)
    wrong = []
    for step in range(2):
        ddp.zero_grad(set_to_none=not keep)
        ddp(2 * HERE.rank + step).backward()
        for (name, (start, make)), p in zip(CASES.items(), model.all, strict=True):
            mean = make(start.contiguous()) * (2 * step + 2) / 2
            contract = p.stride() == p.grad.stride() or "holes" in name
            if not (contract and torch.equal(p.grad, mean.resolve_conj().resolve_neg())):
                wrong.append(f"step {step}: {name}")
    return wrong


@pytest.mark.parametrize("batched", [False, True])
@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("views", [False, True])
def test_every_gradient_is_the_mean(pair, views, keep, batched):
    assert pair.run(wrong_gradients, views, batched, keep) == [[], []]
