"""The picture of a race on one GPU: for every number of ranks, bytes per second of the device's memory over size."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from devices.cell import ALL_REDUCE


def draw(result: dict[str, Any], path: Path) -> None:
    """Writes the PNG."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    rows = [row for row in result["rows"] if row["op"] == ALL_REDUCE] or result["rows"]
    worlds = sorted({row["ranks"] for row in rows})
    names = list(dict.fromkeys(row["candidate"] for row in rows))
    colours = dict(zip(names, pyplot.get_cmap("tab20").colors * 2, strict=False))
    figure, axes = pyplot.subplots(1, len(worlds), figsize=(5.5 * len(worlds), 4.2), squeeze=False, sharey=True)
    for world, panel in zip(worlds, axes[0], strict=True):
        for name in names:
            own = [row for row in rows if (row["ranks"], row["candidate"]) == (world, name)]
            points = sorted((row["size"], row["GB/s of the device"]) for row in own)
            if points:
                panel.plot(*zip(*points, strict=True), marker="o", markersize=3, label=name, color=colours[name])
        panel.set(yscale="log", xlabel="bytes of a rank's tensor", title=f"{world} ranks on one GPU")
        panel.set_xscale("log", base=2)
    axes[0][0].set_ylabel("GB/s of the device's memory (2 N S bytes)")
    pairs = [zip(*panel.get_legend_handles_labels(), strict=True) for panel in axes[0]]
    handles = {label: handle for panel in pairs for handle, label in panel}
    figure.legend(handles.values(), handles.keys(), loc="outside right upper", frameon=False, fontsize=8)
    figure.suptitle(f"all_reduce of float32, {result['machine']['gpu']}", fontsize=10)
    figure.set_layout_engine("constrained")
    figure.savefig(path, dpi=130)
    pyplot.close(figure)
