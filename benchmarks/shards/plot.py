"""The picture: one bar per name."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shards.report import Chart

OURS, THEIRS = "#1f4e8c", "#9aa5b1"


def draw(chart: Chart, title: str, path: Path) -> None:
    """Writes the PNG; what is ringdp's is dark."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    names, values = list(chart.values)[::-1], list(chart.values.values())[::-1]
    figure, axes = pyplot.subplots(figsize=(7.5, 1.0 + 0.35 * len(names)))
    axes.barh(names, values, color=[OURS if "ringdp" in name else THEIRS for name in names])
    axes.set_xlabel(chart.unit)
    axes.set_title(title, loc="left", fontsize=9)
    figure.set_layout_engine("constrained")
    figure.savefig(path, dpi=130)
    pyplot.close(figure)
