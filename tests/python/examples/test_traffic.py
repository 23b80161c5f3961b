"""Traffic: formulas against a rank-by-rank count, and a meter that counts only its stretches."""

from __future__ import annotations

import pytest
import torch.distributed as dist
from ringdp.examples.traffic import Meter, Traffic


@pytest.mark.parametrize("world", [1, 2, 3, 8])
def test_formulas_are_the_sum_over_ranks_and_pieces(world):
    piece = 12
    size = world * piece
    # Over links every rank sends every other rank's raw piece, then its own mean to every other rank.
    wire = sum(piece + piece for rank in range(world) for peer in range(world) if peer != rank)
    copies = sum(2 * (size - piece) * 2 for _ in range(world))
    folds = sum(world * piece + 2 * piece for _ in range(world))
    traffic = Traffic(world, steps=1, gradient_bytes=size, wire=wire, memory=0)
    assert traffic.wire_formula == wire
    assert traffic.memory_formula == copies + folds
    assert traffic.memory_floor == 2 * world * size


@pytest.mark.parametrize(("stage", "gathers", "reductions"), [(0, 0, 2), (1, 1, 2), (2, 1, 1), (3, 2, 1)])
def test_a_stage_sends_its_gathers_and_reductions(stage, gathers, reductions):
    traffic = Traffic(4, steps=3, gradient_bytes=100, wire=1, memory=0, zero_stage=stage)
    assert traffic.wire_formula == (gathers + reductions) * 3 * 100 * 3


def test_shared_memory_has_nothing_to_send():
    assert Traffic(2, 1, 100, wire=0, memory=5).in_memory
    assert Traffic(2, 1, 100, wire=0, memory=5).wire_formula == 0
    assert not Traffic(2, 1, 100, wire=5, memory=500).in_memory


@pytest.mark.usefixtures("alone")
def test_a_backend_without_counters_has_no_total():
    meter = Meter()
    meter.start()
    meter.stop()
    assert meter.total(1, 1, False) is None


@pytest.mark.usefixtures("alone")
def test_the_meter_counts_its_stretches_only(monkeypatch):
    counted = {"wire_bytes_sent": 0, "memory_bytes_read": 0, "memory_bytes_written": 0}

    class Counting:
        def counters(self):
            return dict(counted)

    group = dist.group.WORLD
    monkeypatch.setattr(type(group), "_get_backend", lambda self, device: Counting())
    meter = Meter()
    monkeypatch.undo()
    for inside in (3, 40):
        meter.start()
        counted["wire_bytes_sent"] += inside
        counted["memory_bytes_written"] += 2 * inside
        meter.stop()
        counted["wire_bytes_sent"] += 1000
    assert meter.total(7, 9, False) == Traffic(world=1, steps=7, gradient_bytes=9, wire=43, memory=86)
