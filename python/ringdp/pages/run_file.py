"""Reads what `train_gpt --json` has written, and says in one line what is wrong with another file."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

Number = (int, float)
# Where a report needs what: a path of keys, and the types that are possible there.
NEEDED: dict[tuple[str, ...], Any] = {
    ("backend",): str,
    ("world",): int,
    ("bytes_per_step",): int,
    ("tokens_per_second",): Number,
    ("equal_to_one_process",): bool,
    ("final_hashes",): list,
    ("proof", "of_one_process"): str,
    ("settings",): dict,
    ("history", "losses"): list,
    ("history", "validation"): list,
    ("history", "step_seconds"): list,
    ("comparison",): (dict, type(None)),
    ("observed", "parameters"): int,
    ("observed", "formula_bytes"): Number,
    ("observed", "memory"): (dict, type(None)),
    ("observed", "overlap"): (dict, type(None)),
    ("observed", "links"): list,
}
POSITIVE = {
    ("world",),
    ("bytes_per_step",),
    ("observed", "parameters"),
    ("observed", "formula_bytes"),
    ("comparison", "traffic", "steps"),
}
SPLIT = ("forward", "backward", "communication", "optimizer")
OVERLAP = ("backward", "communication", "exposed", "overlap")
TRAFFIC = ("steps", "wire", "memory")


class NoRun(ValueError):
    """The file is no report of a run; the text is one line."""


def read(file: Path) -> dict[str, Any]:
    """The report. NoRun names the file, and what is missing or wrong in it."""
    try:
        run = json.loads(file.read_text(encoding="utf-8"))
    except OSError as problem:
        raise NoRun(f"cannot read {file}: {problem.strerror}") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as problem:
        raise NoRun(f"{file} is no JSON: {problem}") from None
    try:
        check(run)
    except NoRun as problem:
        how = "write one with: torchrun --nproc-per-node 2 -m ringdp.examples.train_gpt --json run.json"
        raise NoRun(f"{file} is no report of a run: {problem}; {how}") from None
    return run


def check(run: Any) -> None:
    """NoRun names the first thing that a page cannot be made of."""
    for path, kind in NEEDED.items():
        _need(run, path, kind)
    history = run["history"]
    _numbers(history["losses"], "history.losses")
    _numbers(history["step_seconds"], "history.step_seconds")
    for point in history["validation"]:
        _numbers(point, "history.validation")
    _numbers(list((run["observed"]["memory"] or {"none": 0}).values()), "observed.memory")
    for name in ("ours", "gloo", "stock"):
        if run["comparison"] and (name == "ours" or run["comparison"].get(name)):
            _fields(run, ("comparison", name), SPLIT)
    if run["comparison"] and run["comparison"].get("traffic"):
        _fields(run, ("comparison", "traffic"), TRAFFIC)
    if run["observed"]["overlap"]:
        _need(run, ("observed", "overlap", "verdict"), str)
        _need(run, ("observed", "overlap", "buckets"), list)
        _fields(run, ("observed", "overlap"), OVERLAP)
        for number, bucket in enumerate(run["observed"]["overlap"]["buckets"]):
            _bucket(bucket, number)


def _need(run: Any, path: tuple[str, ...], kind: Any) -> None:
    here = run
    for key in path:
        if not isinstance(here, dict) or key not in here:
            raise NoRun(f"it has no {'.'.join(path)}")
        here = here[key]
    wrong_bool = isinstance(here, bool) and kind is not bool
    if wrong_bool or not isinstance(here, kind):
        raise NoRun(f"{'.'.join(path)} is {json.dumps(here)[:40]}")
    if isinstance(here, Number) and (not math.isfinite(here) or (path in POSITIVE and here <= 0)):
        raise NoRun(f"{'.'.join(path)} is {here}")


def _fields(run: Any, path: tuple[str, ...], names: tuple[str, ...]) -> None:
    for name in names:
        _need(run, (*path, name), Number)


def _bucket(bucket: Any, number: int) -> None:
    for name in ("ready", "launched", "done"):
        if not isinstance(bucket, dict) or not isinstance(bucket.get(name), Number):
            raise NoRun(f"observed.overlap.buckets[{number}] has no {name}")


def _numbers(values: Any, name: str) -> None:
    if not isinstance(values, list) or not values:
        raise NoRun(f"{name} has no numbers")
    for value in values:
        if isinstance(value, bool) or not isinstance(value, Number) or not math.isfinite(value):
            raise NoRun(f"{name} has {json.dumps(value)[:40]}, which is no number")
