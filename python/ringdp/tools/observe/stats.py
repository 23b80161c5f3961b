"""`ringdp.stats()`: what this process's groups have done so far, as plain values."""

from __future__ import annotations

from typing import Any

from ringdp import _native
from ringdp.elastic.recovery import OF_THIS_PROCESS


def stats() -> dict[str, Any]:
    """Counters, delays and errors of this rank's process groups of backend ringdp. Not collective; any thread.

    groups: of each: name, rank, world; submitted (collectives); counters (collectives, plan steps, rounds, bytes on
        links and in memory); delays: by rank, seconds that the others waited for that rank alone: how much sooner
        collectives would have begun had it come with the one before it. Every rank has the same delays, up to the
        collective before the latest, between hosts the eighth before it. error: what ended the group, or None.
    trace: events written, kept at most, and lost.
    elastic: under ringdp.elastic.survive: worlds that this process has entered while others trained, micro-batches that
        were dealt out again in them, and the seconds that their beginnings took.
    """
    raw = _native.load().stats()
    groups = [{**group, "delays": [ns * 1e-9 for ns in group.pop("delays_ns")]} for group in raw["groups"]]
    trace = {name: raw[f"events_{name}"] for name in ("written", "kept", "lost")}
    elastic = {
        "worlds": len(OF_THIS_PROCESS),
        "micro_batches_again": sum(len(recovery.again) for recovery in OF_THIS_PROCESS),
        "seconds": sum(recovery.seconds() for recovery in OF_THIS_PROCESS),
    }
    return {"groups": groups, "trace": trace, "elastic": elastic}
