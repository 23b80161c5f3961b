"""When units are gathered and freed: the prefetch schedule, and the hooks that drive it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from ringdp.zero.prefetch import Gathered, PassGathers, PrefetchSchedule, UnitHooks
from torch import nn
from torch.utils.checkpoint import checkpoint


class Noted:
    """What a schedule wants of a unit."""

    def __init__(self, number: int, seen: list[str]) -> None:
        self.number, self.name, self.nbytes = number, "abcdef"[number], 100
        self.holders = self.pins = 0
        self.has_memory, self._seen = False, seen

    def start(self) -> None:
        assert not self.has_memory
        self.has_memory = True
        self._seen.append(f"{self.name}?")

    def wait(self) -> None:
        assert self.has_memory
        self._seen.append(f"{self.name}!")

    def own_memory(self) -> None:
        if not self.has_memory:
            self.start()
        self.wait()

    def free(self) -> None:
        if self.has_memory:
            self.has_memory = False
            self._seen.append(f"{self.name}-")


def rig(count: int, prefetch: bool = True) -> tuple[Any, list[Noted], list[str]]:
    seen: list[str] = []
    units = [Noted(n, seen) for n in range(count)]
    return PrefetchSchedule(units, 4, prefetch, lambda unit: None), units, seen


def use(schedule: PrefetchSchedule, *units: Noted) -> None:
    for unit in units:
        schedule.acquire(unit)
        schedule.release(unit)


def test_the_second_pass_knows_what_comes_next():
    schedule, (a, b, c), seen = rig(3)
    schedule.begin(backward=False)
    use(schedule, a, b, c)
    assert seen == ["a?", "a!", "a-", "b?", "b!", "b-", "c?", "c!", "c-"]
    seen.clear()
    schedule.begin(backward=False)
    use(schedule, a, b, c)
    assert seen == ["a?", "a!", "b?", "a-", "b!", "c?", "b-", "c!", "c-"]


def test_the_first_backward_pass_expects_the_forward_pass_reversed():
    schedule, (a, b), seen = rig(2)
    schedule.begin(backward=False)
    use(schedule, a, b)
    seen.clear()
    schedule.begin(backward=True)
    use(schedule, b, a)
    assert seen == ["b?", "b!", "a?", "b-", "a!", "a-"]


def test_without_prefetch_nothing_comes_ahead():
    schedule, (a, b), seen = rig(2, prefetch=False)
    for _ in range(2):
        seen.clear()
        schedule.begin(backward=False)
        use(schedule, a, b)
        assert seen == ["a?", "a!", "a-", "b?", "b!", "b-"]


def test_what_came_in_vain_is_freed():
    schedule, (a, b, c), seen = rig(3)
    schedule.begin(backward=False)
    use(schedule, a, b, c)
    schedule.begin(backward=False)
    seen.clear()
    use(schedule, a, c)  # b is skipped
    assert seen == ["a?", "a!", "b?", "a-", "b-", "c?", "c!", "c-"]
    schedule.begin(backward=False)
    use(schedule, a)
    assert c.has_memory
    schedule.end()
    assert not c.has_memory


def test_a_unit_that_is_there_is_not_gathered_again():
    schedule, (a, b), seen = rig(2)
    schedule.begin(backward=False)
    schedule.acquire(a)
    use(schedule, a, b, a)
    assert a.has_memory and seen == ["a?", "a!", "b?", "b!", "b-"]
    schedule.release(a)
    assert not a.has_memory


def test_a_unit_that_lingers_is_kept_for_whoever_needs_it_next():
    schedule, (a, b), seen = rig(2)
    schedule.begin(backward=True)
    schedule.acquire(a)
    schedule.release(a, linger=True)
    schedule.acquire(a)
    schedule.release(a)
    assert seen == ["a?", "a!", "a-"]
    schedule.acquire(a)
    schedule.release(a, linger=True)
    use(schedule, b)
    assert seen[3:] == ["a?", "a!", "a-", "b?", "b!", "b-"]
    schedule.acquire(a)
    schedule.release(a, linger=True)
    schedule.end()
    assert not a.has_memory


def test_a_pass_that_was_broken_off_is_cleared_away():
    schedule, (a, b), _ = rig(2)
    schedule.pin(b)
    schedule.begin(backward=False)
    schedule.acquire(a)
    schedule.acquire(b)
    schedule.begin(backward=False)
    assert not a.has_memory and a.holders == 0
    assert b.has_memory and b.holders == 1
    schedule.unpin(b)
    assert not b.has_memory


def test_pins_are_no_part_of_a_pass():
    schedule, (a, b), _ = rig(2)
    schedule.begin(backward=False)
    use(schedule, a)
    schedule.end()
    schedule.pin(b)
    schedule.unpin(b)
    assert schedule.latest().forward.order == ("a",)
    schedule.begin(backward=False)
    assert schedule.running_order() == []


def test_facts_are_those_of_the_latest_passes():
    schedule, (a, b), _ = rig(2)
    for _ in range(2):
        schedule.begin(backward=False)
        use(schedule, a, b)
        assert schedule.running_order() == [0, 1]
        schedule.begin(backward=True)
        use(schedule, b, a)
        schedule.end()
    facts = schedule.latest()
    assert (facts.forward.order, facts.backward.order) == (("a", "b"), ("b", "a"))
    assert facts.forward.ahead == 1 and facts.forward.bytes == 150  # three quarters come from others
    assert facts.exposed == facts.forward.exposed + facts.backward.exposed > 0


def test_facts_can_be_printed():
    text = str(Gathered(forward=PassGathers(("a", "b"), 1, 1500, 0.002)))
    assert "2 gathers, 1 ahead of use, 1,500 bytes received, 2.00 ms exposed: a, b" in text
    assert "backward: 0 gathers" in text


class Notes:
    """In place of a schedule: notes what it is asked for."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def acquire(self, unit: str) -> None:
        self.seen.append(f"+{unit}")

    def release(self, unit: str, *, linger: bool = False) -> None:
        self.seen.append(f"~{unit}" if linger else f"-{unit}")

    def written(self, units: Sequence[str]) -> list[str]:
        return []

    def begin(self, *, backward: bool) -> None:
        self.seen.append("backward" if backward else "forward")

    def end(self) -> None:
        self.seen.append("end")

    def taken(self) -> str:
        """What has been noted since the last call."""
        words, self.seen = " ".join(self.seen), []
        return words


def rig_unit_hooks() -> tuple[nn.Module, Notes, UnitHooks]:
    """Three layers in a row: two are a unit each; the third needs two units."""
    model, notes = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 3)), Notes()
    needed_by = {model[0]: ["a"], model[1]: ["b"], model[2]: ["c", "a"]}
    return model, notes, UnitHooks(needed_by, notes, lambda: None, lambda: notes.seen.append("check"))


X = torch.ones(2, 3)


def test_a_pass_forward_and_a_pass_backward():
    model, notes, hooks = rig_unit_hooks()
    hooks.begin_forward()
    y = model(X)
    assert notes.taken() == "forward +a -a +b -b +c +a -c -a"
    y.sum().backward()
    assert notes.taken() == "backward +c +a -c -a +b -b +a -a check end"


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
def test_without_gradients_there_is_no_way_back(context):
    model, notes, hooks = rig_unit_hooks()
    hooks.begin_forward()
    with context():
        model(X)
    assert notes.taken() == "forward +a -a +b -b +c +a -c -a"


def test_only_what_the_loss_needs_is_gathered_again():
    model, notes, _ = rig_unit_hooks()
    middle = model[0](X)
    model[2](model[1](middle.detach()))
    notes.taken()
    middle.sum().backward()
    assert notes.taken() == "backward +a -a check end"


def test_what_is_left_over_is_released_at_the_end():
    """A pass to the middle only: the first layer's weights get no gradient, so its part is never left."""
    model, notes, _ = rig_unit_hooks()
    h = model[0](X)
    y = model[1](h)
    notes.taken()
    torch.autograd.grad(y.sum(), [h])
    assert notes.taken() == "backward +b -b check end"


def test_errors_in_a_forward_pass_release():
    model, notes, hooks = rig_unit_hooks()
    hooks.begin_forward()
    with pytest.raises(RuntimeError):
        model[0](torch.ones(2, 5))
    assert notes.taken() == "forward +a -a"


def test_errors_in_a_backward_pass_do_not_reach_the_next():
    model, notes, hooks = rig_unit_hooks()
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
    model, notes, hooks = rig_unit_hooks()
    hooks.begin_forward()
    x = X.clone().requires_grad_()
    y = model[1](checkpoint(model[0], x, use_reentrant=True))
    assert notes.taken() == "forward +a -a +b -b"
    y.sum().backward()
    assert notes.taken() == "backward +b -b +a ~a +a -a check end"


def test_a_checkpoint_recomputes_what_is_gathered():
    model, notes, hooks = rig_unit_hooks()
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
    UnitHooks({model: ["a"]}, notes, lambda: None, lambda: None)
    model(X).sum().backward()
    forward, backward = " ".join(notes.seen).split(" backward ")
    assert forward == "+a +a +a -a -a -a"
    assert backward.count("+a") == backward.count("-a") == 3
