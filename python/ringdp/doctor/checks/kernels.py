"""Kernels that give other bits for the same inputs (B19)."""

from __future__ import annotations

from collections.abc import Iterator

from ringdp.attach.finding import Finding
from ringdp.doctor.evidence import Evidence

_SHOWN = 4


def check(evidence: Evidence) -> Iterator[Finding]:
    """As one early step was run twice on every rank."""
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


def not_judged(evidence: Evidence) -> Iterator[str]:
    """Only wrappers are looked into, and not every model can be run twice."""
    rows = [row for records in evidence.ranks.values() for row in records.of("kernels")]
    if unable := [row["unable"] for row in rows if "unable" in row]:
        yield f"kernels: the model cannot be run a second time on the side: {unable[0]}"
    elif evidence.complete and not rows:
        yield "kernels: no DistributedDataParallel trained for three steps (or at zero_stage=3, or compiled)"
