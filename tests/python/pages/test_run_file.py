"""Reading reports: a good one passes, and everything wrong is one line that names it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))
from example_run import run
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
        {"observed__links": []},
        {"comparison__traffic": None},
        {"history__validation": []},
    ],
)
def test_what_was_not_measured_may_be_missing(changes: dict[str, Any]) -> None:
    check(run(**changes))


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"world": "two"}, 'world is "two"'),
        ({"world": True}, "world is true"),
        ({"tokens_per_second": float("nan")}, "tokens_per_second is nan"),
        ({"history": {}}, "it has no history.losses"),
        ({"history__losses": []}, "history.losses has no numbers"),
        ({"history__losses": [1.0, None]}, "history.losses has null, which is no number"),
        ({"history__step_seconds": [float("inf")]}, "history.step_seconds has Infinity"),
        ({"history__validation": [3]}, "history.validation has no numbers"),
        ({"observed__memory": {"parameters": "x"}}, 'observed.memory has "x"'),
        ({"comparison__gloo": {"forward": 1}}, "it has no comparison.gloo.backward"),
        ({"comparison__traffic": {"steps": 0, "wire": 0, "memory": 0}}, "comparison.traffic.steps is 0"),
        ({"observed__parameters": 0}, "observed.parameters is 0"),
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
        (b"[1]", "is no report of a run: it has no backend; write one with: torchrun "),
    ],
)
def test_other_files_are_one_line(content: bytes | None, named: str, tmp_path: Path) -> None:
    file = tmp_path / "run.json"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(NoRun, match=named) as raised:
        read(file)
    assert str(file) in str(raised.value) and "\n" not in str(raised.value)
