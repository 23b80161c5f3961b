"""Reads what `ringdp.RunLog` has written, or says in one line what is wrong with it; the figures of the report."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

Number = (int, float)
# Where a report needs what: a path of keys, and the types that are possible there.
NEEDED: dict[tuple[str, ...], Any] = {
    ("origin", "began"): str,
    ("origin", "host"): str,
    ("origin", "command"): str,
    ("backend",): str,
    ("world",): int,
    ("items_per_step",): Number,
    ("unit",): str,
    ("settings",): dict,
    ("history", "losses"): list,
    ("history", "validation"): list,
    ("history", "step_seconds"): list,
    ("history", "phases"): list,
    ("observed", "parameters"): int,
    ("observed", "memory"): (dict, type(None)),
    ("observed", "formula"): (dict, type(None)),
    ("observed", "overlap"): (dict, type(None)),
    ("observed", "links"): list,
}
# What train_gpt adds: all of one line, or nothing of it.
PROOF: dict[tuple[str, ...], Any] = {
    ("final_hashes",): list,
    ("proof", "of_one_process"): str,
    ("equal_to_one_process",): bool,
}
POSITIVE = {("world",), ("items_per_step",), ("observed", "parameters"), ("comparison", "traffic", "steps")}
PHASE_COUNT = 3  # of a step: forward, backward, wait
SPLIT = ("forward", "backward", "communication", "optimizer")
OVERLAP = ("backward", "communication", "exposed", "overlap")
TRAFFIC = ("steps", "wire", "memory")
MOST = 1e18  # of any number: sums and products of them stay finite


class NoRun(ValueError):
    """The file is not a report of a run; the text is one line."""


def read(file: Path) -> dict[str, Any]:
    """The report. NoRun names the file, and what is missing or wrong in it."""
    try:
        run = json.loads(file.read_text(encoding="utf-8"))
        json.dumps(run, ensure_ascii=False).encode()  # "\\ud800" is half a character, which no page can have
    except OSError as problem:
        raise NoRun(f"cannot read {file}: {problem.strerror}") from None
    except (ValueError, RecursionError) as problem:
        raise NoRun(f"{file} is not JSON: {problem}") from None
    try:
        check(run)
    except NoRun as problem:
        how = "ringdp.RunLog writes one from your training loop (help(ringdp.RunLog))"
        raise NoRun(f"{file} is not a report of a run: {problem}; {how}") from None
    return run


def check(run: Any) -> None:
    """NoRun names the first thing that a page cannot be made of."""
    for path, kind in NEEDED.items():
        _need(run, path, kind)
    _history(run["history"])
    _strings(run["observed"]["links"], "observed.links")
    for name in ("memory", "formula"):
        if run["observed"][name] is not None:
            _numbers(list(run["observed"][name].values()), f"observed.{name}")
    if run["observed"]["formula"] is not None and sum(run["observed"]["formula"].values()) <= 0:
        raise NoRun("observed.formula counts no bytes")
    if run["observed"]["overlap"] is not None:
        _overlap(run)
    if run.get("comparison") is not None:
        _comparison(run)
    if any(path[0] in run for path in PROOF):
        for path, kind in PROOF.items():
            _need(run, path, kind)
        _strings(run["final_hashes"], "final_hashes")


def _history(history: dict[str, Any]) -> None:
    known = [loss for loss in history["losses"] if loss is not None]  # null: it was not finite
    if known or not history["losses"]:
        _numbers(known, "history.losses")
    _numbers(history["step_seconds"], "history.step_seconds")
    for point in history["validation"]:
        unknown = isinstance(point, list) and len(point) == 2 and point[1] is None
        _numbers([point[0], 0] if unknown else point, "history.validation", 2)
    for phases in history["phases"]:
        if phases is not None:
            _numbers(phases, "history.phases", PHASE_COUNT)
    counts = {name: len(history[name]) for name in ("losses", "step_seconds", "phases")}
    if len(set(counts.values())) > 1:
        raise NoRun(f"history has {', '.join(f'{count} {name}' for name, count in counts.items())}: as many of each")


def _overlap(run: Any) -> None:
    _need(run, ("observed", "overlap", "verdict"), str)
    _need(run, ("observed", "overlap", "buckets"), list)
    _fields(run, ("observed", "overlap"), OVERLAP)
    for number, bucket in enumerate(run["observed"]["overlap"]["buckets"]):
        _bucket(bucket, number)


def _comparison(run: Any) -> None:
    _need(run, ("comparison",), dict)
    for name in ("ours", "gloo", "stock"):
        if name == "ours" or run["comparison"].get(name):
            _fields(run, ("comparison", name), SPLIT)
    if run["comparison"].get("traffic") is not None:
        _fields(run, ("comparison", "traffic"), TRAFFIC)


def _need(run: Any, path: tuple[str, ...], kind: Any) -> None:
    here = run
    for key in path:
        if not isinstance(here, dict) or key not in here:
            raise NoRun(f"it has no {'.'.join(path)}")
        here = here[key]
    wrong_bool = isinstance(here, bool) and kind is not bool
    if wrong_bool or not isinstance(here, kind):
        raise NoRun(f"{'.'.join(path)} is {json.dumps(here)[:40]}")
    if isinstance(here, Number) and kind is not bool and (not _sensible(here) or (path in POSITIVE and here <= 0)):
        raise NoRun(f"{'.'.join(path)} is {str(here)[:40]}")


def _fields(run: Any, path: tuple[str, ...], names: tuple[str, ...]) -> None:
    for name in names:
        _need(run, (*path, name), Number)


def _bucket(bucket: Any, number: int) -> None:
    for name in ("ready", "launched", "done"):
        if not isinstance(bucket, dict) or not _sensible(bucket.get(name)):
            raise NoRun(f"observed.overlap.buckets[{number}] has no {name}")


def _numbers(values: Any, name: str, count: int | None = None) -> None:
    if not isinstance(values, list) or not values:
        raise NoRun(f"{name} has no numbers")
    for value in values:
        if not _sensible(value):
            raise NoRun(f"{name} has {json.dumps(value)[:40]}, which is not a number")
    if count is not None and len(values) != count:
        raise NoRun(f"{name} has {json.dumps(values)[:40]}, which is not {count} numbers")


def _sensible(value: Any) -> bool:
    """Whether it is a number that a page can calculate with."""
    return isinstance(value, Number) and not isinstance(value, bool) and -MOST <= value <= MOST


def _strings(values: list[Any], name: str) -> None:
    for value in values:
        if not isinstance(value, str):
            raise NoRun(f"{name} has {json.dumps(value)[:40]}, which is not text")


Run = Mapping[str, Any]
PHASES = ("forward", "backward", "communication", "rest")
IN_FORMULA = ("parameters", "gradients", "state", "master")  # kinds of memory; others are outside of it


def figures(run: Run) -> dict[str, Any]:
    """The figures of a report that check() has passed. Seconds and bytes; None: the run has not measured it."""
    history, observed = run["history"], run["observed"]
    return {
        "origin": run["origin"],
        "backend": run["backend"],
        "ranks": run["world"],
        "steps": len(history["losses"]),
        "loss": _loss(list(enumerate(history["losses"], 1))),
        "validation": _loss(history["validation"]) if history["validation"] else None,
        "throughput": _throughput(run),
        "split": _split(history["step_seconds"], history["phases"]),
        "overlap": observed["overlap"],
        "memory": _memory(observed),
        "links": observed["links"],
        "traffic": _traffic((run.get("comparison") or {}).get("traffic")),
        "comparison": run.get("comparison"),
        "bits": _bits(run),
    }


def _loss(points: Sequence[Sequence[Any]]) -> dict[str, Any]:
    """A summary of (step, loss). points: those with a finite loss; not_finite: the steps of the others."""
    known = [[step, loss] for step, loss in points if loss is not None]
    first, last = (known[0][1], known[-1][1]) if known else (None, None)
    missing = [step for step, loss in points if loss is None]
    return {"first": first, "last": last, "not_finite": missing, "points": known}


def _throughput(run: Run) -> dict[str, Any]:
    seconds = run["history"]["step_seconds"]
    per_second = run["items_per_step"] * len(seconds) / max(sum(seconds), 1e-9)
    return {"unit": run["unit"], "per_step": run["items_per_step"], "per_second": per_second}


def _split(seconds: Sequence[float], phases: Sequence[Sequence[float] | None]) -> dict[str, Any] | None:
    """Medians phase by phase, and the step that took longest. communication: the wait for gradients that backward
    does not hide; rest: optimizer, data, and micro-batches before the last.
    """
    measured = [
        (step, dict(zip(PHASES, [*parts, max(0.0, taken - sum(parts))], strict=True)))
        for step, (taken, parts) in enumerate(zip(seconds, phases, strict=True), 1)
        if parts is not None
    ]
    if not measured:
        return None
    slowest = max(measured, key=lambda row: sum(row[1].values()))
    medians = {phase: median(split[phase] for _, split in measured) for phase in PHASES}
    return {"median": medians, "slowest": slowest[1], "slowest_step": slowest[0]}


def _memory(observed: Run) -> dict[str, Any] | None:
    """counted, formula: bytes by kind. ratio: of what the formula counts. beside_bytes: what it does not count."""
    held, formula = observed["memory"], observed["formula"]
    if held is None:
        return None
    counted = sum(size for kind, size in held.items() if kind in IN_FORMULA)
    expected = None if formula is None else sum(formula.values())
    return {
        "parameters": observed["parameters"],
        "counted": held,
        "formula": formula,
        "counted_bytes": counted,
        "formula_bytes": expected,
        "ratio": counted / expected if expected else None,
        "beside_bytes": sum(held.values()) - counted,
    }


def _traffic(counted: Run | None) -> dict[str, int] | None:
    """Bytes of a step, over all ranks."""
    return None if counted is None else {kind: counted[kind] // counted["steps"] for kind in ("wire", "memory")}


def _bits(run: Run) -> dict[str, Any] | None:
    """The bits that a run has proved; only train_gpt does."""
    if "proof" not in run:
        return None
    return {
        "ranks_are_equal": len(set(run["final_hashes"])) == 1,
        "equal_to_one_process": run["equal_to_one_process"],
        "of_one_process": run["proof"]["of_one_process"],
    }
