"""The steps in C++ have the bits of torch's single-tensor steps, on whole parameters and on pieces."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from ringdp.zero import native

ADAM = {"lr": 1e-2}
CASES = [
    ("SGD", {"lr": 0.1}),
    ("SGD", {"lr": 0.1, "momentum": 0.9, "dampening": 0.2, "weight_decay": 0.01, "maximize": True}),
    ("SGD", {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01}),
    ("Adam", ADAM),
    ("Adam", {**ADAM, "weight_decay": 0.1, "amsgrad": True}),
    ("Adam", {**ADAM, "betas": (0.4, 0.99), "eps": 1e-6, "maximize": True}),
    ("AdamW", ADAM),
    ("AdamW", {**ADAM, "weight_decay": 0.0, "amsgrad": True, "maximize": True}),
    ("AdamW", {"lr": torch.tensor(1e-3)}),
]
# Arithmetic that torch does in tensors and numpy in its own types; steps of float32 alone tell it apart.
ODD_NUMBERS = [
    ("SGD", {"lr": torch.tensor(0.0123), "momentum": 0.9, "dampening": np.float32(0.3), "weight_decay": 0.137}),
    ("Adam", {"lr": torch.tensor(0.0123), "weight_decay": 0.137}),
    ("AdamW", {"lr": torch.tensor(0.0123), "weight_decay": 0.137}),
    ("AdamW", {"lr": np.float32(0.0123), "weight_decay": 0.137}),
    ("AdamW", {"lr": 0.0123, "weight_decay": np.float32(0.137)}),
    ("AdamW", {"lr": np.float64(0.0123), "weight_decay": 0.137}),
]
COUNT = 70_003
CUT = 3 * 1024


def gradient_of(step: int, count: int = COUNT) -> torch.Tensor:
    source = torch.Generator().manual_seed(step)
    return torch.randn(count, generator=source) * 10 ** torch.empty(count).uniform_(-8, 2, generator=source)


def start(dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(COUNT, generator=torch.Generator().manual_seed(99)).to(dtype)


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    raw = [t.detach().flatten().view(torch.uint8) for t in (a, b)]
    return a.shape == b.shape and torch.equal(*raw)


def by_torch(kind: str, given: dict, steps: int, dtype: torch.dtype) -> tuple[torch.Tensor, dict]:
    whole = torch.nn.Parameter(start(dtype))
    optimizer = getattr(torch.optim, kind)([whole], **given, foreach=False, fused=False)
    for step in range(steps):
        whole.grad = gradient_of(step).to(dtype)
        optimizer.step()
    return whole, optimizer.state[whole]


@pytest.fixture(autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("kind", "given"), CASES, ids=str)
def test_pieces_have_torchs_bits(kind, given, dtype):
    expected, state = by_torch(kind, given, 6, dtype)
    flat = start(dtype)
    pieces = [torch.nn.Parameter(flat[:CUT]), torch.nn.Parameter(flat[CUT:])]
    optimizer = getattr(torch.optim, kind)(pieces, **given)
    for step in range(6):
        gradient = gradient_of(step).to(dtype)
        pieces[0].grad, pieces[1].grad = gradient[:CUT], gradient[CUT:]
        with torch.no_grad():
            native.step(optimizer)
    assert same(flat, expected)
    for key, value in state.items():
        parts = [optimizer.state[piece][key] for piece in pieces]
        assert same(torch.cat(parts), value) if value.dim() else all(same(p, value) for p in parts), key


@pytest.mark.parametrize(("kind", "given"), ODD_NUMBERS, ids=str)
def test_settings_that_are_no_plain_numbers_have_torchs_bits(kind, given):
    test_pieces_have_torchs_bits(kind, given, torch.float32)


def test_a_piece_without_gradient_is_left_alone():
    pieces = [torch.nn.Parameter(torch.ones(5)), torch.nn.Parameter(torch.ones(5))]
    optimizer = torch.optim.AdamW(pieces, lr=0.1)
    pieces[0].grad = torch.ones(5)
    with torch.no_grad():
        native.step(optimizer)
    assert not torch.equal(pieces[0], torch.ones(5)) and torch.equal(pieces[1], torch.ones(5))
    assert pieces[1] not in optimizer.state


@pytest.mark.parametrize("kind", ["Adam", "AdamW"])
def test_the_fastest_step_is_near_and_does_not_depend_on_the_cut(kind):
    results = []
    for cut in (CUT, 5 * 1024):
        flat = start()
        pieces = [torch.nn.Parameter(flat[:cut]), torch.nn.Parameter(flat[cut:])]
        optimizer = getattr(torch.optim, kind)(pieces, lr=1e-2, fused=True)
        for step in range(4):
            gradient = gradient_of(step)
            pieces[0].grad, pieces[1].grad = gradient[:cut], gradient[cut:]
            with torch.no_grad():
                native.step(optimizer)
        results.append(flat)
    assert same(*results)
    assert torch.allclose(results[0], by_torch(kind, {"lr": 1e-2}, 4, torch.float32)[0], rtol=1e-5, atol=1e-6)
