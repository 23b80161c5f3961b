"""From times to rows: medians, ratios round by round, bandwidths as nccl-tests counts them."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any

from race.cell import Cell, size_name
from race.rounds import Entry

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
