"""The page of `ringdp ring --html`: recorded all_reduces to step through, and the scaling calculator beside them."""

from __future__ import annotations

import html

from ringdp.pages import wall_page
from ringdp.pages.document import Tab, asset, data, document
from ringdp.pages.packed import packed
from ringdp.playback.play import play
from ringdp.playback.schemes import SCHEMES
from ringdp.playback.trace import Trace

# What can be chosen in the page, beside what it was made for: ranks, and chunks for each.
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
        [asset("ring_state.js"), asset("ring_draw.js"), asset("ring.js"), *wall_page.scripts()],
    )


def _body(opening: Trace) -> str:
    options = "".join(
        f'<option value="{s.name}"{" selected" if s.name == opening.scheme else ""}>{html.escape(s.title)}</option>'
        for s in SCHEMES.values()
    )
    return asset("ring.html").format(schemes=options, size=f"{opening.ranks}x{opening.chunks}")
