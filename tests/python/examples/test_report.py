"""The report: every row of the table, counted bytes beside their formula, JSON with the same numbers."""

from __future__ import annotations

import json
from dataclasses import replace

from ringdp.examples.comparison import Comparison, Split
from ringdp.examples.proof import Proof
from ringdp.examples.report import Report, beside_the_log, show
from ringdp.examples.traffic import Traffic
from ringdp.observe.run_history import History

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
    show(report(LINKS))
    printed = capsys.readouterr().out
    for cells in report(LINKS).rows():
        assert all(cell in printed for cell in cells)


def test_json_has_what_the_log_has_not():
    found = json.loads(json.dumps(beside_the_log(report(LINKS))))
    assert found["comparison"]["traffic"]["wire"] == LINKS.wire
    assert found["equal_to_one_process"] is True and found["final_hashes"] == ["a" * 64] * 2
    assert found["proof"]["of_one_process"] == "b" * 64
    assert beside_the_log(replace(report(), comparison=None))["comparison"] is None
