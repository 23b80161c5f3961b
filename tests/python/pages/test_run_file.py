"""Reading reports: a good one passes, and everything wrong is one line that names it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from example_run import plain_run, run
from ringdp.pages.run_file import NoRun, check, read


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


def test_nobody_needs_to_prove_or_compare() -> None:
    check(plain_run())


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"world": "two"}, 'world is "two"'),
        ({"world": True}, "world is true"),
        ({"items_per_step": float("nan")}, "items_per_step is nan"),
        ({"history": {}}, "it has no history.losses"),
        ({"history__losses": []}, "history.losses has no numbers"),
        ({"history__losses": [1.0, "x"]}, 'history.losses has "x", which is no number'),
        ({"history__step_seconds": [float("inf")]}, "history.step_seconds has Infinity"),
        ({"history__validation": [3]}, "history.validation has no numbers"),
        ({"history__validation": [[None, None]]}, "history.validation has null, which is no number"),
        ({"history__validation": [[1]]}, r"history.validation has \[1\], which is not 2 numbers"),
        ({"history__validation": [[1, 2, 3]]}, r"history.validation has \[1, 2, 3\], which is not 2 numbers"),
        ({"history__phases": [[1, 2]]}, "which is not 3 numbers"),
        ({"history__losses": [1.0]}, "history has 1 losses, 3 step_seconds, 3 phases: as many of each"),
        ({"observed__links": [7]}, "observed.links has 7, which is no text"),
        ({"final_hashes": [[]]}, r"final_hashes has \[\], which is no text"),
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
        (b"{", "is no JSON: "),
        (b"\xff\xfe", "is no JSON: "),
        (b"9" * 5000, "is no JSON: "),
        (rb'"\ud800"', "is no JSON: "),
        (b"[" * 100000, "is no JSON: "),
        (b"[1]", "is no report of a run: it has no backend; ringdp.RunLog writes one "),
    ],
)
def test_other_files_are_one_line(content: bytes | None, named: str, tmp_path: Path) -> None:
    file = tmp_path / "run.json"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(NoRun, match=named) as raised:
        read(file)
    assert str(file) in str(raised.value) and "\n" not in str(raised.value)
