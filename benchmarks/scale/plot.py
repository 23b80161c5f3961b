"""The picture of the model: time by size, one panel per number of ranks, one line per algorithm, dots from SimGrid."""

from __future__ import annotations

from pathlib import Path
from typing import Any

COLORS = {"direct": "#1f4e8c", "ring": "#0a9396", "ring/rotated": "#7f7f7f", "tree": "#bb3e03", "server": "#b8860b"}
COLORS |= {"hierarchy": "#6a4c93"}


def draw(result: dict[str, Any], path: Path) -> None:
    """Writes the PNG."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    panels = result["curves"]
    columns = min(4, len(panels))
    lines = -(-len(panels) // columns)
    shape = {"figsize": (4.2 * columns + 1.6, 3.4 * lines + 0.6), "squeeze": False}
    figure, axes = pyplot.subplots(lines, columns, **shape)
    for place in axes.flat[len(panels) :]:
        place.set_visible(False)
    for place, panel in zip(axes.flat, panels, strict=False):
        for name, times in panel["seconds"].items():
            place.plot(panel["sizes"], [1e3 * t for t in times], label=name, color=COLORS[name], linewidth=1.5)
        for dot in (c for c in result["comparisons"] if (c["hosts"], c["local"]) == (panel["hosts"], panel["local"])):
            place.plot(dot["size"], 1e3 * dot["simulation"], "o", color=COLORS[dot["algorithm"]], markersize=4)
        ranks = f"{panel['hosts'] * panel['local']} ranks"
        place.set_title(ranks if panel["local"] == 1 else f"{ranks}, {panel['local']} per host")
        place.set_xscale("log", base=2)
        place.set_xlabel("bytes per rank")
        place.set_yscale("log")
        place.grid(True, color="#dddddd", linewidth=0.6)
        place.spines[["top", "right"]].set_visible(False)
    for row in axes:
        row[0].set_ylabel("all_reduce, ms")
    handles, labels = max((place.get_legend_handles_labels() for place in axes.flat), key=lambda both: len(both[1]))
    figure.legend(handles, labels, loc="outside right upper", frameon=False)
    figure.suptitle("lines: formula; dots: SimGrid on the recorded plans", x=0.02, ha="left", fontsize=10)
    figure.set_layout_engine("constrained")
    figure.savefig(path, dpi=130)
    pyplot.close(figure)
