"""Rows, bars and the picture of a run on one GPU: medians over rounds, and medians of ratios within a round."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from runner.cell import size_name
from runner.program import Bar, picture

from devices.cell import ALL_REDUCE, ZERO_STEP, Cell
from devices.team import Entry

LIMITS = ("copy", "sweep")
Row = dict[str, Any]
_LARGE, _THREADS, _PROCESSES = 256 << 20, "threads of one process", "processes"
_PEER = "the speed of torch's one-shot in processes"
# what, operation, bytes, candidate, whose time over its time ("roofline": the faster limit), at least
BARS = (
    (f"{_THREADS}, 256 MiB: share of the roofline", ALL_REDUCE, _LARGE, "threads", "roofline", 0.8),
    (f"{_THREADS}, 256 MiB: times the speed of NCCL in processes", ALL_REDUCE, _LARGE, "threads", "nccl", 1.3),
    (f"{_THREADS}, 64 KiB: times {_PEER}", ALL_REDUCE, 64 << 10, "threads push", "symm one_shot", 1 / 1.2),
    (f"{_THREADS}, 4 KiB: times {_PEER}", ALL_REDUCE, 4 << 10, "threads push", "symm one_shot", 1 / 1.2),
    (f"{_PROCESSES}, 256 MiB: share of the roofline", ALL_REDUCE, _LARGE, "processes", "roofline", 0.5),
    (f"{_PROCESSES}, 64 MiB: times gloo's speed", ALL_REDUCE, 64 << 20, "processes", "gloo", 10.0),
    ("fused ZeRO step, 256 MiB: times the separate one's", ZERO_STEP, _LARGE, "fused step", "separate step", 1.5),
)


def ratio(theirs: Sequence[float], ours: Sequence[float]) -> float:
    """Median over rounds of their time over ours."""
    return median(their / our for their, our in zip(theirs, ours, strict=True))


def roofline(entries: Sequence[Entry]) -> list[float]:
    """The faster limit's time in every round; empty when none ran."""
    return [min(times) for times in zip(*(e.seconds for e in entries if e.candidate in LIMITS), strict=True)]


def rows_of(cell: Cell, entries: Sequence[Entry]) -> list[Row]:
    """One for every candidate. `x`: how many times as fast it is as each other one."""
    limit = roofline(entries)
    rows = []
    for entry in entries:
        took = median(entry.seconds)
        speed_of = {other.candidate: ratio(other.seconds, entry.seconds) for other in entries if other is not entry}
        if limit:
            speed_of["roofline"] = ratio(limit, entry.seconds)
        row: Row = {"op": cell.op, "ranks": cell.world, "size": cell.size, "candidate": entry.candidate}
        row |= {"rounds": len(entry.seconds), "calls": entry.calls, "microseconds": 1e6 * took, "wrong": entry.wrong}
        row |= {"GB/s of the device": cell.least_bytes / took / 1e9, "x": speed_of}
        rows.append(row)
    return rows


HEADER = f"{'op':<11}{'ranks':>5}{'size':>9}  {'candidate':<19}{'rounds':>6}{'calls':>6}{'us':>12}{'GB/s':>9}" + (
    f"{'roofline':>9}{'x gloo':>9}{'wrong':>7}"
)


def line(row: Row) -> str:
    """A row for people. GB/s: of the bytes that must cross the device's memory."""
    cells = [f"{row['x'][name]:>9.3g}" if name in row["x"] else f"{'-':>9}" for name in ("roofline", "gloo")]
    return (
        f"{row['op']:<11}{row['ranks']:>5}{size_name(row['size']):>9}  {row['candidate']:<19}{row['rounds']:>6}"
        f"{row['calls']:>6}{row['microseconds']:>12.1f}{row['GB/s of the device']:>9.1f}"
        f"{''.join(cells)}{row['wrong']:>7}"
    )


def bars_of(rows: Sequence[Row]) -> tuple[list[Bar], list[str]]:
    """Every bar at the number of ranks where it is hardest to hold; and those that nothing was measured for."""
    bars, unmeasured = [], []
    for what, op, size, ours, theirs, least in BARS:
        found = [
            (row["x"][theirs], row["ranks"])
            for row in rows
            if (row["op"], row["size"], row["candidate"]) == (op, size, ours) and theirs in row["x"]
        ]
        if found:
            worst, ranks = min(found)
            bars.append(Bar(f"{what}, {ranks} ranks", worst, least))
        else:
            unmeasured.append(what)
    return bars, unmeasured


def draw(result: dict[str, Any], path: Path) -> None:
    """Writes the PNG."""
    from matplotlib import colormaps

    rows = [row for row in result["rows"] if row["op"] == ALL_REDUCE] or result["rows"]
    worlds = sorted({row["ranks"] for row in rows})
    names = list(dict.fromkeys(row["candidate"] for row in rows))
    colours = dict(zip(names, colormaps["tab20"].colors * 2, strict=False))
    with picture(path, 1, len(worlds), figsize=(5.5 * len(worlds), 4.2), squeeze=False, sharey=True) as (figure, axes):
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
