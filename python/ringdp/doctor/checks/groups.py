"""Ranks that call collectives in different orders: on one group an error or a hang, across groups a deadlock (F6)."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from typing import Any

from ringdp.attach.finding import Finding
from ringdp.doctor.evidence import Evidence

_FIX = (
    "make the calls in the same order on all ranks, outside of branches that depend on rank or data; "
    "or wait for one group's work before another's is started"
)


def check(evidence: Evidence) -> Iterator[Finding]:
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
            return _finding("group order", one, a, other, b, place, why)
        if a["op"] != b["op"]:
            why = "a group's ranks must make the same calls: these two pair with each other and give an error or a hang"
            return _finding("different calls", one, a, other, b, place, why)
    return None


def _finding(check_name: str, one: int, a: Any, other: int, b: Any, place: int, why: str) -> Finding:
    seen = (
        f"their collective {place + 1} in common is {_said(a)} on rank {one} and {_said(b)} on rank {other}, "
        f"in step {a['step'] + 1}"
    )
    return Finding(check_name, seen, why, _FIX, (one, other), numbers={"place": place + 1, "step": a["step"] + 1})


def _said(call: dict[str, Any]) -> str:
    return f"{call['op']} of {call['count']} elements on group {call['name']} (ranks {call['group']})"


def _members(call: dict[str, Any]) -> set[int]:
    return {int(rank) for rank in call["group"].split(",") if rank}
