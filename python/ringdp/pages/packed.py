"""Traces as short JSON, for pages that carry many of them.

    {scheme: {"4x4": {"bytes": chunk bytes, "rounds": R, "inputs": [[...]], "frames": [frame, ...]}}}
    frame: [round or 0, phase, moves, held, bytes sent by rank, bytes in memory by rank]
    move:  [source, target, "link" or "memory", chunks, ranks in it, bytes]
    held:  [rank, chunk, ranks in it, value]

Ranks in a sum are a list in the order of the sum.
"""

from __future__ import annotations

from typing import Any

from ringdp.playback.trace import Frame, Trace


def packed(traces: list[Trace]) -> dict[str, dict[str, Any]]:
    """By scheme, then by "ranks x chunks"."""
    book: dict[str, dict[str, Any]] = {}
    for trace in traces:
        book.setdefault(trace.scheme, {})[f"{trace.ranks}x{trace.chunks}"] = {
            "bytes": trace.chunk_bytes,
            "rounds": trace.rounds,
            "inputs": [[_short(value) for value in row] for row in trace.inputs],
            "frames": [_frame(trace, frame) for frame in trace.frames],
        }
    return book


def _frame(trace: Trace, frame: Frame) -> list[Any]:
    moves = [[m.source, m.target, m.via, m.chunks, m.ranks, m.bytes] for m in frame.moves]
    held = [[h.rank, h.chunk, h.ranks, _short(h.value)] for h in frame.held]
    return [frame.round or 0, trace.phase(frame), moves, held, frame.sent, frame.memory]


def _short(value: float) -> float | int:
    return int(value) if value == int(value) else value
