"""What `ringdp report` says of a run, as plain values: its page shows them, and --json prints them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

Run = Mapping[str, Any]
PHASES = ("forward", "backward", "communication", "rest")
IN_FORMULA = ("parameters", "gradients", "state", "master")  # kinds of memory; others lie beside them


def figures(run: Run) -> dict[str, Any]:
    """From a report that run_file.check() has passed. Seconds and bytes; None: the run has not measured it."""
    history, observed = run["history"], run["observed"]
    return {
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
    """Of (step, loss). points: those with a finite loss; not_finite: the steps of the others."""
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
    """counted, formula: bytes by kind. ratio: of what the formula counts. beside: what it does not."""
    held, formula = observed["memory"], observed["formula"]
    if held is None:
        return None
    counted = sum(size for kind, size in held.items() if kind in IN_FORMULA)
    foretold = None if formula is None else sum(formula.values())
    return {
        "parameters": observed["parameters"],
        "counted": held,
        "formula": formula,
        "counted_bytes": counted,
        "formula_bytes": foretold,
        "ratio": counted / foretold if foretold else None,
        "beside_bytes": sum(held.values()) - counted,
    }


def _traffic(counted: Run | None) -> dict[str, int] | None:
    """Bytes of a step, over all ranks."""
    return None if counted is None else {kind: counted[kind] // counted["steps"] for kind in ("wire", "memory")}


def _bits(run: Run) -> dict[str, Any] | None:
    """Only train_gpt proves them."""
    if "proof" not in run:
        return None
    return {
        "ranks_are_equal": len(set(run["final_hashes"])) == 1,
        "equal_to_one_process": run["equal_to_one_process"],
        "of_one_process": run["proof"]["of_one_process"],
    }
