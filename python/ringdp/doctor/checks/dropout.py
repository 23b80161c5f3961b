"""Ranks that drop the same units (F5): losses differ between ranks anyway, so the masks are what to compare."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from ringdp.attach.finding import Finding, names
from ringdp.doctor.evidence import Evidence


def check(evidence: Evidence) -> Iterator[Finding]:
    """Ranks whose generators are in the same state at all of the dropouts that were compared."""
    if not evidence.complete:
        return
    states: dict[tuple[int, int], dict[int, str]] = defaultdict(dict)
    for rank, records in evidence.ranks.items():
        for row in records.of("dropout"):
            states[row["step"], row["call"]][rank] = f"{row['name']} {row['shape']} {row['state']}"
    compared = [row for row in states.values() if len(row) == evidence.world]
    alike = _alike(compared)
    if not alike:
        return
    yield Finding(
        "dropout",
        f"{names(alike)} have the same generator state in all {len(compared)} dropouts that were compared, so "
        "they drop the same units",
        "the ranks' masks are meant to be independent: as they are, N ranks average over one mask, not over N",
        "after the model is made with the same seed on all ranks: torch.manual_seed(seed + rank)",
        alike,
        numbers={"compared": len(compared)},
    )


def _alike(compared: list[dict[int, str]]) -> tuple[int, ...]:
    """The largest set of ranks that share their state in every row."""
    if not compared:
        return ()
    together: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for rank in compared[0]:
        together[tuple(row[rank] for row in compared)].append(rank)
    largest = max(together.values(), key=len)
    return tuple(sorted(largest)) if len(largest) > 1 else ()
