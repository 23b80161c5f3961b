"""Evidence as a clean run of two ranks leaves it, with whatever a test changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ringdp.tools.attach.records import RankRecords
from ringdp.tools.doctor.evidence import Evidence

STEPS = 20
MODEL = {"bytes": 8 << 20, "buckets": 3}
PLACE = {"host": "here", "cores": list(range(8)), "host_cores": 8, "threads": 2}
STEP = {
    "optimizer": "SGD",
    "lr": 0.1,
    "samples": 32,
    "seconds": 0.1,
    "data": 0.001,
    "called": 0.0,
    "buffers": 0.0,
    "backwards": 1,
}
DDP = {"forward": 0.03, "backward": 0.05, "communication": 0.02, "overlap": 0.015}
SHARED = "shm: same boot id, network namespace and user, mapping probed"

Change = Callable[[int, int], dict[str, Any]]


def nothing(rank: int, step: int) -> dict[str, Any]:
    """No change."""
    return {}


def paths(rank: int, world: int, why: str = SHARED) -> list[dict[str, Any]]:
    """How this rank reaches every other one."""
    return [{"peer": peer, "why": why} for peer in range(world) if peer != rank]


def records(rank: int, world: int, kinds: dict[str, list[dict[str, Any]]]) -> RankRecords:
    """Rows by kind, as if read from a file."""
    header = {"kind": "rank", "rank": rank, "world": world, "pid": 0}
    return RankRecords(header, {kind: [{"kind": kind, **row} for row in rows] for kind, rows in kinds.items()})


def evidence(
    world: int = 2,
    step: Change = nothing,
    ddp: Change = nothing,
    place: Change = nothing,
    model: dict[str, Any] | None = None,
    more: Callable[[int], dict[str, list[dict[str, Any]]]] = lambda rank: {},
    **given: Any,
) -> Evidence:
    """step, ddp, place: what differs from the clean run, by rank and step; more(rank): other records."""
    ranks = {}
    for rank in range(world):
        kinds = {
            "step": [{**STEP, "step": n, **step(rank, n)} for n in range(STEPS)],
            "ddp": [{**DDP, "step": n, **ddp(rank, n)} for n in range(STEPS - 1)],
            "place": [{**PLACE, "paths": paths(rank, world), **place(rank, 1)}],
            "model": [{**MODEL, **(model or {})}],
            "kernels": [{"differing": []}],
        }
        ranks[rank] = records(rank, world, {**kinds, **more(rank)})
    return Evidence(ranks, **given)
