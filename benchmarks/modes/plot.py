"""The picture of an ablation: a bar per mode, in it what of its step is exposed communication."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def draw(result: dict[str, Any], path: Path) -> None:
    """Writes the PNG."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    rows = result["rows"][::-1]
    names = [row["mode"] for row in rows]
    exposed = [1e3 * row["exposed"] for row in rows]
    rest = [1e3 * row["step"] - wait for row, wait in zip(rows, exposed, strict=True)]
    figure, axes = pyplot.subplots(figsize=(7.5, 2.6))
    axes.barh(names, rest, color="#1f4e8c", label="computing, and communication that it hides")
    axes.barh(names, exposed, left=rest, color="#bb3e03", label="exposed communication")
    axes.set_xlabel("step, ms (median)")
    axes.set_title(result["title"], loc="left", fontsize=9)
    figure.legend(loc="outside lower right", ncols=2, frameon=False)
    figure.set_layout_engine("constrained")
    figure.savefig(path, dpi=130)
    pyplot.close(figure)
