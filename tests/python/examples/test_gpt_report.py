"""Progress, traffic, comparison, picture and table of a run."""

from __future__ import annotations

import copy
import importlib.util
import json
import sys
from dataclasses import replace

import pytest
import torch.distributed as dist
from ringdp.examples.gpt import Feed, Windows, read_corpus
from ringdp.examples.gpt_report import (
    Comparison,
    Live,
    Meter,
    Proof,
    Report,
    Split,
    Traffic,
    compare,
    draw_picture,
    print_report,
    progress_for,
    report_json,
    smooth,
)
from ringdp.examples.train_gpt import make_model
from ringdp.testing import parameters_hash
from ringdp.tools.observe.run_log import History


def steps(count: int) -> list[History]:
    return [History([4.0] * n, [(0, 5.0)], [0.1] * n) for n in range(1, count + 1)]


def test_other_ranks_print_nothing(capsys):
    with progress_for(1, 0, 5, 10) as shown:
        for history in steps(5):
            shown.show(history)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("count", [1, 7, 400])
def test_plain_lines_are_few_and_end_with_the_last_step(capsys, count):
    with progress_for(0, 0, count, 10) as shown:
        for history in steps(count):
            shown.show(history)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == min(count, 20)
    assert lines[-1].startswith(f"step {count}/{count}  loss 4.0000  val 5.0000")
    assert "tokens/s" in lines[-1]
    assert lines[-1].endswith(" s left")


def test_a_terminal_gets_a_live_line(monkeypatch):
    pytest.importorskip("rich")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    with progress_for(0, 2, 5, 10) as shown:
        assert isinstance(shown, Live)
        for history in steps(5)[2:]:
            shown.show(history)
    assert shown._bar.finished


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


def test_a_step_is_the_sum_of_its_phases():
    assert Split(forward=1.0, backward=2.0, communication=0.5, optimizer=0.25).step == 3.75


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("ddp", ["ringdp", "stock"])
def test_every_phase_is_measured_and_the_model_stays_as_it_is(tiny, ddp):
    options = tiny()
    model = make_model(options, options.seq)
    before = parameters_hash(copy.deepcopy(model))
    windows = Windows(read_corpus(options.corpus).train, options.seq, "training")
    comparison = compare(model, Feed(windows, options.batch, 0, 1, 0).starting_at(0), 3, ddp)
    stock = [comparison.stock] if ddp == "ringdp" else []
    assert (comparison.stock is None) == (comparison.stock_ratio is None) == (ddp == "stock")
    for split in (comparison.ours, comparison.gloo, *stock):
        assert min(split.forward, split.backward, split.optimizer) > 0
        assert split.communication >= 0
    assert comparison.ratio > 0
    assert comparison.traffic is None, "gloo counts no bytes"
    assert parameters_hash(model) == before


HISTORY = History(losses=[5.0, 4.0, 3.5], validation=[(0, 5.1), (3, 3.6)], step_seconds=[0.3, 0.3, 0.4])
SPLIT = Split(0.04, 0.08, 0.01, 0.007)
PNG = b"\x89PNG\r\n\x1a\n"


@pytest.mark.parametrize(
    "comparison", [Comparison(SPLIT, SPLIT, 1.0, None), Comparison(SPLIT, SPLIT, 1.0, None, SPLIT, 1.0), None]
)
def test_a_png_is_written(tmp_path, comparison):
    pytest.importorskip("matplotlib")
    path = draw_picture(tmp_path / "new", "title", "ringdp", HISTORY, comparison)
    assert path is not None
    assert path.read_bytes().startswith(PNG)
    assert path.stat().st_size > 10_000


def test_without_matplotlib_there_is_none(tmp_path, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert draw_picture(tmp_path, "title", "ringdp", HISTORY, None) is None
    assert list(tmp_path.iterdir()) == []


def test_smoothing_keeps_a_constant_and_follows_a_change():
    assert smooth([2.0] * 5) == pytest.approx([2.0] * 5)
    step = smooth([0.0] * 50 + [1.0] * 50)
    assert 0 < step[52] < 0.5 < step[60] < step[99] < 1


OURS, GLOO = Split(0.04, 0.08, 0.01, 0.007), Split(0.04, 0.08, 0.02, 0.007)
LINKS = Traffic(world=2, steps=10, gradient_bytes=1000, wire=20_000, memory=7)
SHARED = Traffic(world=2, steps=10, gradient_bytes=1000, wire=0, memory=80_000)


def report(traffic: Traffic | None = None) -> Report:
    history = History([5.0, 4.0], [(0, 5.1), (2, 4.1)], [1.5, 0.5])
    comparison = Comparison(OURS, GLOO, 1.07, traffic)
    return Report("ringdp", 2, 1024, history, comparison, ["a" * 64] * 2, Proof(["b" * 64] * 2, "b" * 64))


def row(of: Report, what: str) -> str:
    return next(" ".join(r[1:]) for r in of.rows() if r[0] == what)


def test_losses_speed_and_bits():
    table = report()
    assert row(table, "training loss").startswith("5.0000 -> 4.0000")
    assert row(table, "validation loss").startswith("5.1000 -> 4.1000")
    assert row(table, "tokens/s").startswith("1,024 ")
    assert row(table, "step, gloo / ours").startswith("1.070 ringdp 137.0 ms, gloo 147.0 ms")
    assert row(table, "ranks").startswith("same parameters")
    assert row(table, "one process").startswith("equal (sha256 bbbbbbbbbbbb)")


def test_bytes_equal_to_their_formula_say_so():
    assert row(report(LINKS), "wire bytes/step").startswith("2,000 = formula, 2(N-1) S")
    assert row(report(SHARED), "wire bytes/step").startswith("0 = formula, shared memory")
    assert row(report(SHARED), "memory bytes/step").startswith("8,000 = formula")
    assert "2NS = 4,000" in row(report(SHARED), "memory bytes/step")


def test_bytes_that_differ_show_both_numbers():
    assert row(report(replace(LINKS, wire=30_000)), "wire bytes/step").startswith("3,000 formula 2,000")


def test_a_stage_has_its_own_formula_and_no_claim_on_memory():
    sharded = report(replace(LINKS, wire=30_000, zero_stage=1))
    assert row(sharded, "wire bytes/step").startswith("3,000 = formula, 3(N-1) S")
    shared = row(report(replace(SHARED, zero_stage=2)), "memory bytes/step")
    assert shared == "8,000 of gradients and parameters in shards"


def test_gradients_in_shared_memory_are_read_and_written_once():
    in_place = replace(SHARED, memory=40_000, in_place=True)
    assert row(report(in_place), "memory bytes/step").startswith("4,000 = formula, 2NS")


def test_stock_ddp_has_a_row_where_it_is_another():
    table = report()
    assert not any("stock" in r[0] for r in table.rows())
    both = replace(table, comparison=replace(table.comparison, stock=GLOO, stock_ratio=1.2))
    assert row(both, "step, stock DDP / ours").startswith("1.200 stock DDP 147.0 ms, 20.0 ms of it")


def test_what_was_not_measured_is_a_dash():
    assert row(report(), "wire bytes/step").startswith("- ")
    assert row(replace(report(), comparison=None), "step over gloo").startswith("- ")
    assert "--rounds 0" in row(replace(report(), comparison=None), "wire bytes/step")


def test_drift_between_ranks_is_loud():
    assert row(replace(report(), final_hashes=["a", "b"]), "ranks").startswith("DIFFERENT")


def test_the_table_has_every_row(capsys):
    print_report(report(LINKS))
    printed = capsys.readouterr().out
    for cells in report(LINKS).rows():
        assert all(cell in printed for cell in cells)


def test_json_has_what_the_log_has_not():
    found = json.loads(json.dumps(report_json(report(LINKS))))
    assert found["comparison"]["traffic"]["wire"] == LINKS.wire
    assert found["equal_to_one_process"] is True and found["final_hashes"] == ["a" * 64] * 2
    assert found["proof"]["of_one_process"] == "b" * 64
    assert report_json(replace(report(), comparison=None))["comparison"] is None
