"""Plans as csrc/collective/recorder prints them, and what can be counted in them."""

from __future__ import annotations

import json
from typing import Any

from scale.costs import ELEMENT, SEGMENT, Topology

Plan = dict[str, Any]


def plans(algorithm: str, size: int, at: Topology) -> list[Plan]:
    """One plan per rank of an all_reduce of `size` bytes of float32; "ring/rotated" is the ring in rotated order."""
    from ringdp import _native

    name, _, order = algorithm.partition("/")
    first_ranks = list(range(0, at.ranks, at.local))
    core = _native.load()
    return [
        json.loads(
            core.plan_json(
                "all_reduce",
                name,
                order or "rank",
                rank,
                at.ranks,
                max(1, size // ELEMENT),
                segment_bytes=SEGMENT,
                hosts=first_ranks,
            )
        )
        for rank in range(at.ranks)
    ]


def steps(of: list[Plan]) -> int:
    """Steps of all ranks together: what a simulation has to play."""
    return sum(plan["totals"]["steps"] for plan in of)


def port_bytes(of: list[Plan], at: Topology) -> int:
    """Bytes through the busiest direction of the busiest port: what stays on a host is not counted."""
    sent, received = [0] * at.hosts, [0] * at.hosts
    for plan in of:
        here = plan["rank"] // at.local
        for lane in plan["lanes"]:
            for step in lane["steps"]:
                if step["verb"] == "send" and step["peer"] // at.local != here:
                    sent[here] += step["bytes"]
                    received[step["peer"] // at.local] += step["bytes"]
    return max(sent + received)


def rounds(of: list[Plan]) -> int:
    """Communication rounds of the longest rank."""
    return max(plan["totals"]["rounds"] for plan in of)
