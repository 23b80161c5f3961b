"""What RunLog wrote is read; other files are refused in one line; the report's figures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from example_run import plain_run, run
from ringdp.tools.pages.run_file import NoRun, check, figures, read


def test_a_good_report(tmp_path: Path) -> None:
    file = tmp_path / "run.json"
    file.write_text(json.dumps(run()))
    assert read(file) == run()


@pytest.mark.parametrize(
    "changes",
    [
        {"comparison": None},
        {"observed__overlap": None},
        {"observed__memory": None},
        {"observed__formula": None},
        {"history__phases": [None, None, None]},
        {"history__losses": [1.0, None, None]},
        {"history__losses": [None, None, None]},
        {"history__validation": [[0, 5.0], [3, None]]},
        {"observed__links": []},
        {"comparison__traffic": None},
        {"history__validation": []},
    ],
)
def test_what_was_not_measured_may_be_missing(changes: dict[str, Any]) -> None:
    check(run(**changes))


def test_a_run_need_not_prove_or_compare() -> None:
    check(plain_run())


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"world": "two"}, 'world is "two"'),
        ({"world": True}, "world is true"),
        ({"origin": {"began": "", "host": ""}}, "it has no origin.command"),
        ({"items_per_step": float("nan")}, "items_per_step is nan"),
        ({"history": {}}, "it has no history.losses"),
        ({"history__losses": []}, "history.losses has no numbers"),
        ({"history__losses": [1.0, "x"]}, 'history.losses has "x", which is not a number'),
        ({"history__step_seconds": [float("inf")]}, "history.step_seconds has Infinity"),
        ({"history__validation": [3]}, "history.validation has no numbers"),
        ({"history__validation": [[None, None]]}, "history.validation has null, which is not a number"),
        ({"history__validation": [[1]]}, r"history.validation has \[1\], which is not 2 numbers"),
        ({"history__validation": [[1, 2, 3]]}, r"history.validation has \[1, 2, 3\], which is not 2 numbers"),
        ({"history__phases": [[1, 2]]}, "which is not 3 numbers"),
        ({"history__losses": [1.0]}, "history has 1 losses, 3 step_seconds, 3 phases: as many of each"),
        ({"observed__links": [7]}, "observed.links has 7, which is not text"),
        ({"final_hashes": [[]]}, r"final_hashes has \[\], which is not text"),
        ({"proof": {}}, "it has no proof.of_one_process"),
        ({"comparison": 3}, "comparison is 3"),
        ({"observed__memory": {"parameters": "x"}}, 'observed.memory has "x"'),
        ({"comparison__gloo": {"forward": 1}}, "it has no comparison.gloo.backward"),
        ({"comparison__traffic": {"steps": 0, "wire": 0, "memory": 0}}, "comparison.traffic.steps is 0"),
        ({"observed__parameters": 0}, "observed.parameters is 0"),
        ({"world": 10**400}, "world is 1000"),
        ({"history__step_seconds": [0.1, 10**400, 0.1]}, "history.step_seconds has 1000"),
        ({"comparison__ours__forward": 10**400}, "comparison.ours.forward is 1000"),
        ({"comparison__traffic": {}}, "it has no comparison.traffic.steps"),
        ({"observed__formula": {"parameters": 0}}, "observed.formula counts no bytes"),
        ({"observed__formula": {"parameters": None}}, "observed.formula has null"),
        ({"observed__overlap__buckets": [{"ready": 1, "launched": 10**400}]}, r"buckets\[0\] has no launched"),
        ({"observed__overlap__buckets": [{"ready": 1}]}, r"observed.overlap.buckets\[0\] has no launched"),
    ],
)
def test_what_is_wrong_is_named(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(NoRun, match=named):
        check(run(**changes))


@pytest.mark.parametrize(
    ("content", "named"),
    [
        (None, "cannot read .*: No such file or directory"),
        (b"{", "is not JSON: "),
        (b"\xff\xfe", "is not JSON: "),
        (b"9" * 5000, "is not JSON: "),
        (rb'"\ud800"', "is not JSON: "),
        (b"[" * 100000, "is not JSON: "),
        (b"[1]", "is not a report of a run: it has no origin.began; ringdp.RunLog writes one "),
    ],
)
def test_other_files_are_one_line(content: bytes | None, named: str, tmp_path: Path) -> None:
    file = tmp_path / "run.json"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(NoRun, match=named) as raised:
        read(file)
    assert str(file) in str(raised.value) and "\n" not in str(raised.value)


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
