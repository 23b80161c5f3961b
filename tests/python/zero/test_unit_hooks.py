"""Hooks on modules: what a forward and a backward pass ask the schedule for."""

from __future__ import annotations

import pytest
import torch
from ringdp.zero.unit_hooks import UnitHooks
from torch import nn
from torch.utils.checkpoint import checkpoint


class Notes:
    """In place of a schedule: notes what it is asked for."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def acquire(self, unit: str) -> None:
        self.seen.append(f"+{unit}")

    def release(self, unit: str, *, linger: bool = False) -> None:
        self.seen.append(f"~{unit}" if linger else f"-{unit}")

    def begin(self, *, backward: bool) -> None:
        self.seen.append("backward" if backward else "forward")

    def end(self) -> None:
        self.seen.append("end")

    def taken(self) -> str:
        """What has been noted since the last call."""
        words, self.seen = " ".join(self.seen), []
        return words


def rig() -> tuple[nn.Module, Notes, UnitHooks]:
    """Three layers in a row: two are a unit each; the third needs two units."""
    model, notes = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 3)), Notes()
    needed_by = {model[0]: ["a"], model[1]: ["b"], model[2]: ["c", "a"]}
    return model, notes, UnitHooks(needed_by, notes, lambda: notes.seen.append("check"))


X = torch.ones(2, 3)


def test_a_pass_forward_and_a_pass_backward():
    model, notes, hooks = rig()
    hooks.begin_forward()
    y = model(X)
    assert notes.taken() == "forward +a -a +b -b +c +a -c -a"
    y.sum().backward()
    assert notes.taken() == "backward +c +a -c -a +b -b +a -a check end"


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
def test_without_gradients_there_is_no_way_back(context):
    model, notes, hooks = rig()
    hooks.begin_forward()
    with context():
        model(X)
    assert notes.taken() == "forward +a -a +b -b +c +a -c -a"


def test_only_what_the_loss_needs_is_gathered_again():
    model, notes, _ = rig()
    middle = model[0](X)
    model[2](model[1](middle.detach()))
    notes.taken()
    middle.sum().backward()
    assert notes.taken() == "backward +a -a check end"


def test_what_is_left_over_is_released_at_the_end():
    """A pass to the middle only: the first layer's weights get no gradient, so its part is never left."""
    model, notes, _ = rig()
    h = model[0](X)
    y = model[1](h)
    notes.taken()
    torch.autograd.grad(y.sum(), [h])
    assert notes.taken() == "backward +b -b check end"


def test_errors_in_a_forward_pass_release():
    model, notes, hooks = rig()
    hooks.begin_forward()
    with pytest.raises(RuntimeError):
        model[0](torch.ones(2, 5))
    assert notes.taken() == "forward +a -a"


def test_errors_in_a_backward_pass_do_not_reach_the_next():
    model, notes, hooks = rig()
    y = model(X)
    y.register_hook(lambda _: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        y.sum().backward()
    hooks.begin_forward()
    notes.taken()
    model(X).sum().backward()
    assert notes.taken().endswith("backward +c +a -c -a +b -b +a -a check end")


def test_a_reentrant_checkpoint_gathers_once_more():
    """The recomputed unit lingers until its own backward pass, an inner one, begins."""
    model, notes, hooks = rig()
    hooks.begin_forward()
    x = X.clone().requires_grad_()
    y = model[1](checkpoint(model[0], x, use_reentrant=True))
    assert notes.taken() == "forward +a -a +b -b"
    y.sum().backward()
    assert notes.taken() == "backward +b -b +a ~a +a -a check end"


def test_a_checkpoint_recomputes_what_is_gathered():
    model, notes, hooks = rig()
    hooks.begin_forward()
    y = model[1](checkpoint(model[0], X.clone().requires_grad_(), use_reentrant=False))
    notes.taken()
    y.sum().backward()
    words = notes.taken().split()
    assert words[:3] == ["backward", "+b", "-b"] and words[-2:] == ["check", "end"]
    assert words.count("+a") == words.count("-a") + words.count("~a") == 2


def test_a_module_that_calls_itself():
    class Again(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 3)

        def forward(self, x: torch.Tensor, depth: int = 2) -> torch.Tensor:
            return self.layer(x if depth == 0 else self(x, depth - 1)).tanh()

    model, notes = Again(), Notes()
    UnitHooks({model: ["a"]}, notes, lambda: None)
    model(X).sum().backward()
    forward, backward = " ".join(notes.seen).split(" backward ")
    assert forward == "+a +a +a -a -a -a"
    assert backward.count("+a") == backward.count("-a") == 3
