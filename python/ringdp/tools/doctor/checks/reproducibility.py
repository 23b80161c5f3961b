"""Ranks that drop the same units, and kernels that give other bits for the same inputs.

Losses differ between ranks anyway, so dropout masks are what to compare.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from ringdp.text.units import names
from ringdp.tools.attach.finding import Finding
from ringdp.tools.doctor.evidence import Evidence


def check_dropout(evidence: Evidence) -> Iterator[Finding]:
    """Ranks whose generators are in the same state at all of the dropouts that were compared."""
    if not evidence.complete:
        return
    states: dict[tuple[int, int], dict[int, str]] = defaultdict(dict)
    for rank, records in evidence.ranks.items():
        for row in records.of("dropout"):
            states[row["step"], row["call"]][rank] = f"{row['name']} {row['shape']} {row['state']}"
    compared = [row for row in states.values() if len(row) == evidence.world]
    equal = _equal_ranks(compared)
    if not equal:
        return
    yield Finding(
        "dropout",
        f"{names(equal)} have the same generator state in all {len(compared)} dropouts that were compared, so "
        "they drop the same units",
        "the ranks' masks are meant to be independent: as they are, N ranks average over one mask, not over N",
        "after the model is made with the same seed on all ranks: torch.manual_seed(seed + rank)",
        equal,
        numbers={"compared": len(compared)},
    )


def _equal_ranks(compared: list[dict[int, str]]) -> tuple[int, ...]:
    """The largest set of ranks that share their state in every row."""
    if not compared:
        return ()
    together: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for rank in compared[0]:
        together[tuple(row[rank] for row in compared)].append(rank)
    largest = max(together.values(), key=len)
    return tuple(sorted(largest)) if len(largest) > 1 else ()


_SHOWN = 4


def check_kernels(evidence: Evidence) -> Iterator[Finding]:
    """Parameters whose gradients differed when one early step was run twice on a rank."""
    differing = {
        rank: row["differing"]
        for rank, records in evidence.ranks.items()
        for row in records.of("kernels")
        if row.get("differing")
    }
    if not differing:
        return
    parameters = sorted(set().union(*differing.values()))
    more = f", ... ({len(parameters)} parameters)" if len(parameters) > _SHOWN else ""
    yield Finding(
        "kernels",
        f"the same batch with the same generator state gave two gradients of {', '.join(parameters[:_SHOWN])}{more}",
        "a run cannot be repeated, and a comparison with one process shows differences that data parallelism did not "
        "make",
        "torch.use_deterministic_algorithms(True) names the operation; on CUDA also CUBLAS_WORKSPACE_CONFIG=:4096:8 "
        "and torch.backends.cudnn.benchmark=False. Noise that a layer draws from elsewhere than torch's, Python's or "
        "NumPy's generators looks the same",
        tuple(differing),
        numbers={"parameters": parameters},
    )


def kernels_not_judged(evidence: Evidence) -> Iterator[str]:
    """Only wrapped models are checked, and not every model can be run twice."""
    rows = [row for records in evidence.ranks.values() for row in records.of("kernels")]
    if unable := [row["unable"] for row in rows if "unable" in row]:
        yield f"kernels: the model cannot be run a second time on the side: {unable[0]}"
    elif evidence.complete and not rows:
        yield "kernels: no DistributedDataParallel trained for three steps (or at zero_stage=3, or compiled)"
