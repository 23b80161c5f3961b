"""From times to rows: medians, ratios within a round, bandwidths as nccl-tests counts them; table and picture."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from runner.cell import Cell, size_name
from runner.program import picture
from runner.rounds import Entry

REFERENCES = {"sweep": "of_sweep", "shuffle": "of_shuffle", "probe": "of_probe", "gloo": "over_gloo"}
SUBJECT = "ringdp"


def spread(values: Sequence[float]) -> tuple[float, float]:
    """10th and 90th percentile, the nearest ranks."""
    ordered = sorted(values)
    return ordered[round(0.1 * (len(ordered) - 1))], ordered[round(0.9 * (len(ordered) - 1))]


def paired(top: Sequence[float], bottom: Sequence[float]) -> dict[str, float]:
    """The ratio top / bottom of each round: its median and spread."""
    ratios = [a / b for a, b in zip(top, bottom, strict=True)]
    low, high = spread(ratios)
    return {"median": median(ratios), "p10": low, "p90": high}


def row_of(cell: Cell, entry: Entry, others: dict[str, Entry]) -> dict[str, Any]:
    """One candidate in one cell. GB are 10^9 bytes.

    of_sweep, of_shuffle, of_probe: the limit's time / this one's. over_gloo: gloo's / this one's. over_ringdp: this
    one's / that of ringdp on ordinary tensors.
    """
    seconds = median(entry.times)
    algbw = cell.nbytes / seconds / 1e9
    low, high = spread(entry.times)
    row: dict[str, Any] = {
        "ranks": cell.ranks,
        "size": cell.nbytes,
        "count": cell.count,
        "type": cell.dtype,
        "op": cell.op,
        "candidate": entry.candidate,
        "rounds": len(entry.times),
        "time_us": seconds * 1e6,
        "time_p10_us": low * 1e6,
        "time_p90_us": high * 1e6,
        "algbw": algbw,
        "busbw": algbw * cell.bus_factor,
        "wrong": entry.wrong,
    }
    for reference, key in REFERENCES.items():
        if reference in others and reference != entry.candidate:
            row[key] = paired(others[reference].times, entry.times)
    if SUBJECT in others and entry.candidate != SUBJECT:
        row["over_ringdp"] = paired(entry.times, others[SUBJECT].times)
    return row


def rows_of(cell: Cell, entries: list[Entry]) -> list[dict[str, Any]]:
    """All candidates of a cell, in the order in which they were named."""
    named = {entry.candidate: entry for entry in entries}
    return [row_of(cell, entry, named) for entry in entries]


COLUMNS = (
    ("ranks", 5),
    ("size", 8),
    ("count", 9),
    ("type", 8),
    ("op", 14),
    ("candidate", 12),
    ("rounds", 6),
    ("time us", 10),
    ("algbw", 7),
    ("busbw", 7),
    ("wrong", 5),
    ("of sweep", 8),
    ("shuffle", 7),
    ("probe", 6),
    ("x gloo", 7),
    ("[p10 p90]", 15),
    ("x ringdp", 8),
)


def header() -> str:
    """The line above the rows."""
    return " ".join(name.rjust(width) for name, width in COLUMNS)


def line(row: dict[str, Any], limits: Sequence[str]) -> str:
    """One row. A limit has a time and nothing to be compared with."""
    is_limit = row["candidate"] in limits

    def ratio(key: str, form: str) -> str:
        return form.format(row[key]["median"]) if key in row and not is_limit else "-"

    gloo = row.get("over_gloo")
    cells = [
        str(row["ranks"]),
        size_name(row["size"]),
        str(row["count"]),
        row["type"],
        row["op"],
        row["candidate"],
        str(row["rounds"]),
        f"{row['time_us']:.1f}",
        "-" if is_limit else f"{row['algbw']:.2f}",
        "-" if is_limit else f"{row['busbw']:.2f}",
        "-" if is_limit else str(row["wrong"]),
        ratio("of_sweep", "{:.2f}"),
        ratio("of_shuffle", "{:.2f}"),
        ratio("of_probe", "{:.2f}"),
        ratio("over_gloo", "{:.2f}"),
        f"[{gloo['p10']:.2f} {gloo['p90']:.2f}]" if gloo and not is_limit else "-",
        ratio("over_ringdp", "{:.2f}"),
    ]
    return " ".join(cell.rjust(width) for cell, (_, width) in zip(cells, COLUMNS, strict=True))


COLORS = {"ringdp": "#1f4e8c", "ringdp.empty": "#0a9396", "gloo": "#bb3e03", "openmpi": "#7f7f7f", "mpich": "#b8860b"}
COLORS |= {"intelmpi": "#6a4c93", "deepspeed": "#4f772d"}
LIMIT_LINES = {"sweep": ("of_sweep", "limit (sweep)"), "probe": ("of_probe", "limit (sockets)")}


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
    op, dtype = subject_of(result["rows"])
    rows = [row for row in result["rows"] if (row["op"], row["type"]) == (op, dtype)]
    worlds = sorted({row["ranks"] for row in rows})
    shape = {"figsize": (4.2 * len(worlds) + 1.8, 7.0), "squeeze": False, "sharex": True, "sharey": "row"}
    with picture(path, 2, len(worlds), **shape) as (figure, axes):
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


def _candidates(rows: list[dict[str, Any]], limits: list[str]) -> list[str]:
    return [name for name in dict.fromkeys(row["candidate"] for row in rows) if name not in limits]


def _draw_times(axes: Any, rows: list[dict[str, Any]], limits: list[str]) -> None:
    for name in _candidates(rows, limits):
        axes.plot(*series(rows, name, "time_us"), "o-", label=name, color=COLORS.get(name), markersize=4)
    for name in (name for name in LIMIT_LINES if name in limits):
        axes.plot(*series(rows, name, "time_us"), "k--", label=LIMIT_LINES[name][1], linewidth=1)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    _tidy(axes, rows)


def _draw_shares(axes: Any, rows: list[dict[str, Any]], limits: list[str]) -> None:
    for name in _candidates(rows, limits):
        for limit in (limit for limit in LIMIT_LINES if limit in limits):
            axes.plot(*series(rows, name, LIMIT_LINES[limit][0]), "o-", color=COLORS.get(name), markersize=4)
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
