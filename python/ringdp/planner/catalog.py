"""All kinds of questions, in the order in which help lists them."""

from __future__ import annotations

from ringdp.planner import batch, errata, feed, measured, memory, overview, scaling, step, traffic, walkthrough
from ringdp.planner.kind import Kind

_ROOMS = (overview, batch, memory, traffic, step, scaling, feed, walkthrough, errata, measured)

KINDS: dict[str, Kind] = {kind.name: kind for room in _ROOMS for kind in room.KINDS}
