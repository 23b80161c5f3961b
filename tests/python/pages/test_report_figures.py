"""The figures of a report, by hand."""

from __future__ import annotations

import json

import pytest
from example_run import plain_run, run
from ringdp.pages.report_figures import figures


def test_throughput_is_all_items_over_all_seconds() -> None:
    assert figures(run())["throughput"] == {"unit": "tokens", "per_step": 1000, "per_second": 3000.0}


def test_the_split_adds_up_to_the_step() -> None:
    split = figures(run())["split"]
    assert split["slowest_step"] == 1 and sum(split["slowest"].values()) == pytest.approx(0.5)
    assert split["median"] == pytest.approx({"forward": 0.075, "backward": 0.15, "communication": 0.03, "rest": 0.12})


def test_memory_is_compared_by_what_the_formula_counts() -> None:
    memory = figures(run())["memory"]
    assert (memory["counted_bytes"], memory["formula_bytes"], memory["beside_bytes"]) == (1608, 1600, 64)
    assert memory["ratio"] == 1608 / 1600
    without = figures(run(observed__formula=None))["memory"]
    assert (without["counted_bytes"], without["formula_bytes"], without["beside_bytes"]) == (1608, None, 64)


def test_traffic_is_of_one_step() -> None:
    assert figures(run())["traffic"] == {"wire": 0, "memory": 12345}


def test_losses_that_are_no_numbers_are_named() -> None:
    loss = figures(run(history__losses=[None, 4.0, None]))["loss"]
    assert loss == {"first": 4.0, "last": 4.0, "not_finite": [1, 3], "points": [[2, 4.0]]}
    validation = figures(run(history__validation=[[0, None]]))["validation"]
    assert validation == {"first": None, "last": None, "not_finite": [0], "points": []}


def test_bits_need_all_ranks_equal() -> None:
    assert figures(run())["bits"]["ranks_are_equal"]
    assert not figures(run(final_hashes=["a", "b"]))["bits"]["ranks_are_equal"]


def test_what_a_loop_does_not_measure_is_none() -> None:
    found = figures({**plain_run(), "history": {**run()["history"], "phases": [None] * 3, "validation": []}})
    assert [name for name, value in found.items() if value is None] == [
        "validation",
        "split",
        "traffic",
        "comparison",
        "bits",
    ]
    json.dumps(found, allow_nan=False)
