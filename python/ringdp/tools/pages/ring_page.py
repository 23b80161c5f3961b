"""The page of `ringdp ring --html`: recorded all_reduces to step through, and the scaling calculator."""

from __future__ import annotations

import html
from typing import Any

from ringdp.tools.pages import wall_page
from ringdp.tools.pages.document import Tab, asset, data, document
from ringdp.tools.plan_viewer.play import play
from ringdp.tools.plan_viewer.schemes import SCHEMES
from ringdp.tools.plan_viewer.trace import Frame, Trace


def packed(traces: list[Trace]) -> dict[str, dict[str, Any]]:
    """Traces by scheme, then by "ranks x chunks"."""
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


# What can be chosen in the page in addition to what it was made for: ranks, and chunks for each.
SIZES = {ranks: sorted({4, ranks, 2 * ranks}) for ranks in range(2, 9)}


def page(opening: Trace) -> str:
    """The whole file. It opens with `opening`; all algorithms are there in its size too."""
    sizes = {(ranks, chunks) for ranks, several in SIZES.items() for chunks in several}
    sizes.add((opening.ranks, opening.chunks))
    traces = [play(name, ranks, chunks) for name in SCHEMES for ranks, chunks in sorted(sizes)]
    recorded = data("traces", {"book": packed(traces), "notes": {s.name: s.note for s in SCHEMES.values()}})
    return document(
        "ringdp: how data-parallel ranks sum",
        [Tab("ring", "All-reduce, step by step", _body(opening) + recorded), wall_page.tab()],
        [asset("ring.js"), *wall_page.scripts()],
    )


def _body(opening: Trace) -> str:
    options = "".join(
        f'<option value="{s.name}"{" selected" if s.name == opening.scheme else ""}>{html.escape(s.title)}</option>'
        for s in SCHEMES.values()
    )
    return asset("ring.html").format(schemes=options, size=f"{opening.ranks}x{opening.chunks}")
