"""Communication that backward hides nothing of (F3)."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

from ringdp.attach.finding import Finding
from ringdp.doctor.evidence import WARM_UP, Evidence

_NONE = 0.02
_MATTERS = 0.05  # of a step
_FIRST_BUCKET = 1 << 20  # bytes: a model that small is one bucket, and has nothing to overlap with


def check(evidence: Evidence) -> Iterator[Finding]:
    """Where the median overlap of the warm steps is nothing, and what is exposed is worth having."""
    model, steps = evidence.model(), evidence.warm("ddp")
    if not steps or not model or model["bytes"] <= _FIRST_BUCKET:
        return
    rows = [row for step in steps.values() for row in step.values() if row["communication"] > 0]
    if not rows:
        return
    # One bucket has nothing left to hide behind; what is measured then is how late the pass's end was noticed.
    hidden = 0 if model["buckets"] == 1 else 1
    overlap = median(hidden * row["overlap"] / row["communication"] for row in rows)
    exposed = median(row["communication"] - hidden * row["overlap"] for row in rows)
    if overlap > _NONE or exposed < _MATTERS * evidence.step_seconds():
        return
    one = (
        "all gradients are one bucket, which is launched after the last of them"
        if model["buckets"] == 1
        else "every bucket is launched after the last gradient"
    )
    yield Finding(
        "overlap",
        f"{overlap:.0%} of the communication is hidden behind the backward pass; {1e3 * exposed:.1f} ms of each step "
        f"of {1e3 * evidence.step_seconds():.1f} ms are spent waiting: {one}",
        "the loss is right and the step is slower than it need be",
        "smaller buckets (bucket_cap_mb; default 25), overlap=True, static_graph=True instead of "
        "find_unused_parameters, and no reduction by hand after backward",
        numbers={"overlap": overlap, "exposed_ms": 1e3 * exposed, "buckets": model["buckets"], "bytes": model["bytes"]},
    )


def not_judged(evidence: Evidence) -> Iterator[str]:
    """Without a wrapper there are no figures; with a small model nothing to overlap."""
    if evidence.complete and not evidence.model():
        yield "overlap: no DistributedDataParallel made three steps"
    elif evidence.model() and evidence.model()["bytes"] <= _FIRST_BUCKET:
        yield f"overlap: {evidence.model()['bytes']:,} bytes of gradients are one bucket: nothing to overlap with"
    elif evidence.complete and not evidence.warm("ddp"):
        yield f"overlap: that takes {WARM_UP + 2} steps; give more --steps"
