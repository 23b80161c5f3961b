"""The picture: step times, predicted and measured, by ranks and link."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def draw(result: dict[str, Any], path: Path) -> None:
    """Writes the PNG."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    rows = result["rows"]
    names = [f"{row['ranks']} ranks, {row['gigabits']:g} Gb/s" for row in rows]
    places = range(len(rows))
    figure, axes = pyplot.subplots(figsize=(7.5, 0.4 * len(rows) + 1.2))
    columns = (("predicted_step", "predicted", 0.2, "#94a9c9"), ("step", "measured", -0.2, "#1f4e8c"))
    for key, label, shift, colour in columns:
        at, widths = [place + shift for place in places], [1e3 * row[key] for row in rows]
        axes.barh(at, widths, 0.38, label=label, color=colour)
    axes.set_yticks(list(places), names)
    axes.invert_yaxis()
    axes.set_xlabel("step, ms (median)")
    axes.set_title(result["title"], loc="left", fontsize=9)
    figure.legend(loc="outside lower right", ncols=2, frameon=False)
    figure.set_layout_engine("constrained")
    figure.savefig(path, dpi=130)
    pyplot.close(figure)
