"""A layer that runs on some ranks only: its parameters have a gradient here and none there."""

from __future__ import annotations

from collections.abc import Iterator

from ringdp.attach.finding import Finding, names
from ringdp.doctor.checks.failure import HANGS
from ringdp.doctor.evidence import Evidence

_SHOWN = 4


def check(evidence: Evidence) -> Iterator[Finding]:
    """Over all steps. A rank that is still in its backward pass, waiting for others, counts as having all."""
    lacking: dict[str, set[int]] = {}
    steps = 0
    all_rows = _rows(evidence)
    whole = [set.intersection(*rows.values()) for rows in all_rows.values() if len(rows) == evidence.world]
    for rows in all_rows.values():
        everywhere = set.intersection(*rows.values()) if len(rows) == evidence.world else set().union(*whole)
        partly = [(name, rank) for rank, missing in rows.items() for name in missing - everywhere]
        steps += bool(partly)
        for name, rank in partly:
            lacking.setdefault(name, set()).add(rank)
    if not lacking or evidence.world < 2:
        return
    ranks = sorted(set().union(*lacking.values()))
    more = f", ... ({len(lacking)} parameters)" if len(lacking) > _SHOWN else ""
    shown = ", ".join(sorted(lacking)[:_SHOWN]) + more
    yield Finding(
        "partial layer",
        f"{names(ranks)} computed no gradient for {shown}, which other ranks did, in {steps} of {len(all_rows)} steps",
        "without find_unused_parameters the others wait for those gradients, or the next forward pass fails; with it "
        "the mean is over all ranks, though fewer had a share in it",
        "run the layer on all ranks, if need be on a batch of 0 samples or multiplied by 0; or "
        "find_unused_parameters=True, if that mean is what you want",
        tuple(ranks),
        numbers={"parameters": sorted(lacking), "steps": steps},
    )


def _rows(evidence: Evidence) -> dict[int, dict[int, set[str]]]:
    """By step and rank: parameters without a gradient. A last step that the doctor has cut short says nothing."""
    done = evidence.by_step("step") if evidence.stopped not in ("", HANGS) else None
    rows: dict[int, dict[int, set[str]]] = {}
    for rank, records in evidence.ranks.items():
        for row in records.of("unused"):
            if done is not None and row["step"] not in done:
                continue
            missing = rows.setdefault(row["step"], {})
            missing[rank] = missing.get(rank, set(row["names"])) & set(row["names"])  # micro-batches of a step
    return rows
