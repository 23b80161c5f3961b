"""ringdp/selftest/seat.py: a rank's inputs are what the others believe them to be."""

from __future__ import annotations

import ringdp
import torch
from ringdp.selftest.seat import Seat


def test_everyone_has_the_same_inputs_for_everyone():
    first, second = (Seat(rank, 3, label="x").inputs(4, torch.int32) for rank in range(2))
    assert len(first) == 3
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_label_and_part_choose_other_inputs():
    seat = Seat(0, 1, label="x")
    assert not torch.equal(seat.inputs(40, torch.int32)[0], seat.inputs(40, torch.int32, "part")[0])
    assert not torch.equal(seat.inputs(40, torch.int32)[0], Seat(0, 1, label="y").inputs(40, torch.int32)[0])


def test_copies_are_equal_and_a_shared_seat_asks_for_shared_memory(monkeypatch):
    asked = []
    monkeypatch.setattr(ringdp, "empty", lambda size, **given: asked.append(given["group"]) or torch.empty(size))
    tensor = torch.arange(6.0)
    for shared in (False, True):
        copy = Seat(0, 1, group="mine", shared=shared).copy_of(tensor)
        assert torch.equal(copy, tensor)
        assert copy.data_ptr() != tensor.data_ptr()
    assert asked == ["mine"]


def test_waits_for_works_only():
    waited = []
    seat = Seat(0, 1)
    seat.wait(None)
    seat.wait(type("Work", (), {"wait": lambda self: waited.append(1)})())
    assert waited == [1]
