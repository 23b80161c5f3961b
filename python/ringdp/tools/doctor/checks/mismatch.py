"""Ranks that do different work: calls of collectives in different orders, and layers that run on some ranks only.

On one group a different order is an error or a hang, across groups a deadlock. A parameter of a layer that runs on some
ranks only has a gradient here and none there.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from typing import Any

from ringdp.text.units import counted, names
from ringdp.tools.attach.finding import Finding
from ringdp.tools.doctor.checks.failure import HANGS
from ringdp.tools.doctor.evidence import Evidence

_FIX = (
    "make the calls in the same order on all ranks, outside of branches that depend on rank or data; "
    "or wait for one group's work before another's is started"
)


def check_calls(evidence: Evidence) -> Iterator[Finding]:
    """The first difference between two ranks, over the groups that both are in."""
    calls = {rank: records.of("call") for rank, records in evidence.ranks.items()}
    for one, other in combinations(calls, 2):
        found = _difference(one, calls[one], other, calls[other])
        if found:
            yield found
            return


def _difference(one: int, calls: list[dict[str, Any]], other: int, others: list[dict[str, Any]]) -> Finding | None:
    mine = [call for call in calls if {one, other} <= _members(call)]
    theirs = [call for call in others if {one, other} <= _members(call)]
    for place, (a, b) in enumerate(zip(mine, theirs, strict=False)):  # one may have been stopped earlier
        if (a["group"], a["name"]) != (b["group"], b["name"]):
            why = (
                "each may wait for the other: over NCCL, whose collectives hold the device, and with blocking calls "
                "over any backend, that is a deadlock"
            )
            return _call_finding("group order", one, a, other, b, place, why)
        if a["op"] != b["op"]:
            why = "a group's ranks must make the same calls: these two pair with each other and give an error or a hang"
            return _call_finding("different calls", one, a, other, b, place, why)
    return None


def _call_finding(check_name: str, one: int, a: Any, other: int, b: Any, place: int, why: str) -> Finding:
    seen = (
        f"their collective {place + 1} in common is {_said(a)} on rank {one} and {_said(b)} on rank {other}, "
        f"in step {a['step'] + 1}"
    )
    return Finding(check_name, seen, why, _FIX, (one, other), numbers={"place": place + 1, "step": a["step"] + 1})


def _said(call: dict[str, Any]) -> str:
    return f"{call['op']} of {counted(call['count'], 'element')} on group {call['name']} (ranks {call['group']})"


def _members(call: dict[str, Any]) -> set[int]:
    return {int(rank) for rank in call["group"].split(",") if rank}


_SHOWN = 4


def check_layers(evidence: Evidence) -> Iterator[Finding]:
    """Over all steps. A rank that is still in its backward pass, waiting for others, counts as having all."""
    lacking: dict[str, set[int]] = {}
    steps = 0
    all_rows = _rows(evidence)
    whole = [set.intersection(*rows.values()) for rows in all_rows.values() if len(rows) == evidence.world]
    for rows in all_rows.values():
        everywhere = set.intersection(*rows.values()) if len(rows) == evidence.world else set().union(*whole)
        partly = [(name, rank) for rank, missing in rows.items() for name in missing - everywhere]
        steps += bool(partly)
        for name, rank in partly:
            lacking.setdefault(name, set()).add(rank)
    if not lacking or evidence.world < 2:
        return
    ranks = sorted(set().union(*lacking.values()))
    more = f", ... ({len(lacking)} parameters)" if len(lacking) > _SHOWN else ""
    shown = ", ".join(sorted(lacking)[:_SHOWN]) + more
    yield Finding(
        "partial layer",
        f"{names(ranks)} computed no gradient for {shown}, which other ranks did, in {steps} of "
        f"{counted(len(all_rows), 'step')}",
        "without find_unused_parameters the others wait for those gradients, or the next forward pass fails; with it "
        "the mean is over all ranks, though fewer had a share in it",
        "run the layer on all ranks, if need be on a batch of 0 samples or multiplied by 0; or "
        "find_unused_parameters=True, if that mean is what you want",
        tuple(ranks),
        numbers={"parameters": sorted(lacking), "steps": steps},
    )


def _rows(evidence: Evidence) -> dict[int, dict[int, set[str]]]:
    """By step and rank: parameters without a gradient. A last step that the doctor interrupted is left out."""
    done = evidence.by_step("step") if evidence.stopped not in ("", HANGS) else None
    rows: dict[int, dict[int, set[str]]] = {}
    for rank, records in evidence.ranks.items():
        for row in records.of("unused"):
            if done is not None and row["step"] not in done:
                continue
            missing = rows.setdefault(row["step"], {})
            missing[rank] = missing.get(rank, set(row["names"])) & set(row["names"])  # micro-batches of a step
    return rows
