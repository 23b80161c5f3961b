"""Functions are replaced, and come back as they were."""

from __future__ import annotations

import pytest
from ringdp.tools.attach.patches import Patches


class Base:
    def step(self):
        """The original."""
        return 1


class Below(Base):
    pass


def plus(number):
    return lambda original: lambda self: original(self) + number


def test_replacements_nest_and_come_back():
    original = Base.step
    patches = Patches()
    patches.around(Base, "step", plus(1))
    patches.around(Base, "step", plus(10))
    assert Base().step() == 12
    assert Base.step.__doc__ == "The original."
    patches.undo()
    patches.undo()
    assert Base.step is original


def test_an_inherited_function_is_inherited_again():
    patches = Patches()
    patches.around(Below, "step", plus(1))
    assert (Base().step(), Below().step()) == (1, 2)
    patches.undo()
    assert "step" not in vars(Below) and Below().step() == 1


def test_hooks_are_taken_back_in_reverse_order():
    order = []
    patches = Patches()
    patches.on_undo(lambda: order.append("first"))
    patches.on_undo(lambda: order.append("second"))
    patches.undo()
    assert order == ["second", "first"]


def test_what_is_not_there_is_named():
    with pytest.raises(AttributeError, match="no_such"):
        Patches().around(Base, "no_such", plus(1))
