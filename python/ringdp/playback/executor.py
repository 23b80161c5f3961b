"""The same example through the real ring: nothing recorded, real threads and links."""

from __future__ import annotations

from typing import Any

from ringdp import _native


def execute(given: list[list[float]], order: str) -> dict[str, Any]:
    """What the executor did over shared-memory links with an input per rank: events, results, rounds, bytes_sent.

    order: of the sums, "rank" or "rotated". ImportError where the extension cannot be loaded.
    """
    return _native.load().ring_walkthrough(given, order)
