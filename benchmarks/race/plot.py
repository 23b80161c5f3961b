"""The picture of a race: times by size with the limit as a line, shares of the limit; a column per number of ranks."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from race.cell import size_name

COLORS = {"ringdp": "#1f4e8c", "ringdp.empty": "#0a9396", "gloo": "#bb3e03", "openmpi": "#7f7f7f", "mpich": "#b8860b"}
COLORS |= {"intelmpi": "#6a4c93", "deepspeed": "#4f772d"}
LIMITS = {"sweep": ("of_sweep", "limit (sweep)"), "probe": ("of_probe", "limit (sockets)")}


def series(rows: Iterable[dict[str, Any]], candidate: str, key: str) -> tuple[list[int], list[float]]:
    """Sizes and values of one candidate; of a ratio its median."""
    chosen = sorted((row for row in rows if row["candidate"] == candidate and key in row), key=lambda row: row["size"])
    values = [row[key]["median"] if isinstance(row[key], dict) else row[key] for row in chosen]
    return [row["size"] for row in chosen], values


def subject_of(rows: list[dict[str, Any]]) -> tuple[str, str]:
    """The collective and dtype that the picture shows: the first of the table."""
    return rows[0]["op"], rows[0]["type"]


def draw(result: dict[str, Any], path: Path) -> None:
    """Writes the PNG. ValueError when there is nothing to show."""
    if not result["rows"]:
        raise ValueError("nothing was measured: no picture")
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    op, dtype = subject_of(result["rows"])
    rows = [row for row in result["rows"] if (row["op"], row["type"]) == (op, dtype)]
    worlds = sorted({row["ranks"] for row in rows})
    shape = {"figsize": (4.2 * len(worlds) + 1.8, 7.0), "squeeze": False, "sharex": True, "sharey": "row"}
    figure, axes = pyplot.subplots(2, len(worlds), **shape)
    for column, world in enumerate(worlds):
        mine = [row for row in rows if row["ranks"] == world]
        _draw_times(axes[0][column], mine, result["limits"])
        _draw_shares(axes[1][column], mine, result["limits"])
        axes[0][column].set_title(f"{world} ranks")
    axes[0][0].set_ylabel("time, us (median)")
    axes[1][0].set_ylabel("share of the limit")
    named = {
        label: handle for place in axes[0] for handle, label in zip(*place.get_legend_handles_labels(), strict=True)
    }
    figure.legend(list(named.values()), list(named), loc="outside right upper", frameon=False)
    machine = result["machine"]
    figure.suptitle(f"{op}, {dtype}: {machine['cpu']}, {machine['cores']} cores", x=0.02, ha="left")
    figure.set_layout_engine("constrained")
    figure.savefig(path, dpi=130)
    pyplot.close(figure)


def _candidates(rows: list[dict[str, Any]], limits: list[str]) -> list[str]:
    return [name for name in dict.fromkeys(row["candidate"] for row in rows) if name not in limits]


def _draw_times(axes: Any, rows: list[dict[str, Any]], limits: list[str]) -> None:
    for name in _candidates(rows, limits):
        axes.plot(*series(rows, name, "time_us"), "o-", label=name, color=COLORS.get(name), markersize=4)
    for name in (name for name in LIMITS if name in limits):
        axes.plot(*series(rows, name, "time_us"), "k--", label=LIMITS[name][1], linewidth=1)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    _tidy(axes, rows)


def _draw_shares(axes: Any, rows: list[dict[str, Any]], limits: list[str]) -> None:
    for name in _candidates(rows, limits):
        for limit in (limit for limit in LIMITS if limit in limits):
            axes.plot(*series(rows, name, LIMITS[limit][0]), "o-", color=COLORS.get(name), markersize=4)
    axes.axhline(1.0, color="k", linestyle="--", linewidth=1)
    axes.set_ylim(0, 1.25)
    _tidy(axes, rows)
    axes.set_xlabel("bytes per rank")


def _tidy(axes: Any, rows: list[dict[str, Any]]) -> None:
    sizes = sorted({row["size"] for row in rows})
    axes.set_xticks(sizes, [size_name(size) for size in sizes], rotation=45, ha="right")
    axes.minorticks_off()
    axes.grid(True, color="#dddddd", linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
