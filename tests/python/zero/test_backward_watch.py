"""csrc/zero/backward_watch.cc: when a backward pass enters and leaves what one call has made."""

from __future__ import annotations

import weakref
from collections.abc import Callable

import pytest
import torch
from ringdp import _native
from torch import nn
from torch.utils.checkpoint import checkpoint

_C = _native.load()


class Call:
    """A watched call: `seen` gets what happens, with `name`."""

    def __init__(self, seen: list[str], name: str, function: Callable[..., object], *args: object) -> None:
        since = _C.next_node()
        self.result = function(*args)
        outputs = self.result if isinstance(self.result, tuple) else (self.result,)
        note = seen.append
        self.watched = _C.watch_backward(
            [t for t in outputs if t.requires_grad], since, lambda: note(f"+{name}"), lambda: note(f"-{name}")
        )


def told(seen: list[str], name: str, tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, whose gradient is noted when it is complete."""
    tensor.register_hook(lambda _: seen.append(name))
    return tensor


def test_calls_are_entered_and_left_in_reverse_order():
    seen: list[str] = []
    first, second = nn.Linear(3, 3), nn.Linear(3, 3)
    x = torch.randn(2, 3, requires_grad=True)
    a = told(seen, "between", Call(seen, "a", lambda: first(x).tanh()).result)
    b = Call(seen, "b", lambda: second(a).relu()).result
    b.sum().backward()
    assert seen == ["+b", "-b", "between", "+a", "-a"]


def test_parameters_that_need_no_input_gradient_are_enough():
    """No node leads out of the first layer but to its parameters."""
    seen: list[str] = []
    layer = nn.Linear(3, 3)
    Call(seen, "a", layer, torch.randn(2, 3)).result.sum().backward()
    assert seen == ["+a", "-a"]


def test_the_order_of_sums_is_that_without_a_watch():
    """Three terms, whose sum depends on their order: the input is used inside twice, and outside."""
    layer = nn.Linear(64, 64)

    def gradient(watched: bool) -> torch.Tensor:
        torch.manual_seed(3)
        x = torch.randn(8, 64, requires_grad=True)
        h = x * 1.7

        def call() -> torch.Tensor:
            return layer(h).sin() + h.exp()

        y = Call([], "a", call).result if watched else call()
        (y * 3.3 + h.cos()).square().sum().backward()
        return x.grad

    assert torch.equal(gradient(True), gradient(False))


def test_several_outputs_enter_once_and_leave_when_all_is_done():
    seen: list[str] = []
    x = torch.randn(3, requires_grad=True)
    a, b = Call(seen, "a", lambda: (x.sin(), x.cos())).result
    (a.sum() + told(seen, "late", b * 2).sum()).backward()
    assert seen[0] == "late" and seen[1:] == ["+a", "-a"]
    seen.clear()
    a, b = Call(seen, "a", lambda: (x.sin(), x.cos())).result
    a.sum().backward()  # a part of the nodes only
    assert seen == ["+a"]


def test_every_pass_over_the_graph_is_told():
    seen: list[str] = []
    x = torch.randn(3, requires_grad=True)
    loss = Call(seen, "a", lambda: (x * x).sin()).result.sum()
    loss.backward(retain_graph=True)
    loss.backward()
    assert seen == ["+a", "-a"] * 2


def test_a_pass_that_was_broken_off_does_not_confuse_the_next():
    seen: list[str] = []
    x = torch.randn(3, requires_grad=True)
    stop = [True]

    def stumble(_: torch.Tensor) -> None:
        if stop.pop():
            raise ArithmeticError

    def call() -> torch.Tensor:
        h = x.sin()
        h.register_hook(stumble)
        return h.cos()

    loss = Call(seen, "a", call).result.sum()
    with pytest.raises(ArithmeticError):
        loss.backward(retain_graph=True)
    stop.append(False)
    loss.backward()
    assert seen == ["+a", "+a", "-a"]


def test_calls_inside_calls():
    seen: list[str] = []
    x = torch.randn(3, requires_grad=True)

    def outer() -> torch.Tensor:
        h = x.sin()
        return Call(seen, "inner", lambda: h.cos().exp()).result.tanh()

    Call(seen, "outer", outer).result.sum().backward()
    assert seen == ["+outer", "+inner", "-inner", "-outer"]


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_a_checkpoint_is_a_part_like_any_other(use_reentrant):
    seen: list[str] = []
    layer = nn.Linear(3, 3)
    x = torch.randn(2, 3, requires_grad=True)
    Call(seen, "a", lambda: checkpoint(layer, x * 2, use_reentrant=use_reentrant)).result.sum().backward()
    assert seen == ["+a", "-a"]


def test_steps_in_place_on_a_result_belong_to_whoever_takes_them():
    seen: list[str] = []
    x = torch.randn(3, requires_grad=True)
    y = Call(seen, "a", lambda: x.sin()).result
    y.mul_(2).exp_()
    y.sum().backward()
    assert seen == ["+a", "-a"]


def test_a_call_that_makes_nothing_is_not_watched():
    x = torch.randn(3, requires_grad=True)
    made_before = x * 2
    assert not Call([], "a", lambda: made_before).watched
    assert not Call([], "a", lambda: x).watched
    with torch.no_grad():
        assert not Call([], "a", lambda: x * 2).watched


def test_errors_of_callbacks_reach_the_caller():
    x = torch.randn(3, requires_grad=True)

    def fail() -> None:
        raise ArithmeticError("from enter")

    since = _C.next_node()
    y = x * 2
    _C.watch_backward([y], since, fail, fail)
    with pytest.raises(ArithmeticError, match="from enter"):
        y.sum().backward()


def test_callbacks_live_as_long_as_the_graph():
    class Held:
        def __call__(self) -> None: ...

    held = Held()
    gone = weakref.ref(held)
    x = torch.randn(3, requires_grad=True)
    since = _C.next_node()
    y = x * 2
    _C.watch_backward([y], since, held, held)
    del held
    assert gone() is not None
    del y
    assert gone() is None
