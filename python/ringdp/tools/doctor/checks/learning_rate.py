"""The learning rate against the scaling rule: N ranks have N times the batch, and need a larger step."""

from __future__ import annotations

from collections.abc import Iterator
from math import sqrt
from statistics import median

from ringdp.tools.attach.finding import Finding
from ringdp.tools.doctor.evidence import Evidence

_TOLERANCE = 0.1
_ADAPTIVE = ("adam", "lamb", "adagrad", "rmsprop", "lion")


def check(evidence: Evidence) -> Iterator[Finding]:
    """Linear for SGD; for Adam and its kin anything from the square root to linear. A rising rate is warming up."""
    if not evidence.complete or evidence.baseline is None:
        return
    rates, batch, optimizer = _seen(evidence)
    if not rates or not batch or rates[-1] > rates[0] * (1 + 1e-6):
        return
    base = evidence.baseline
    factor = batch / base.batch
    linear = base.lr * factor
    least = base.lr * sqrt(factor) if _is_adaptive(optimizer) else linear
    low, high = sorted((least, linear))
    rate = max(rates)
    if low * (1 - _TOLERANCE) <= rate <= high * (1 + _TOLERANCE):
        return
    wanted = f"{linear:g}" if low == high else f"{low:g} (square root) to {high:g} (linear)"
    yield Finding(
        "learning rate",
        f"{optimizer} steps with lr {rate:g} at a global batch of {batch}; {base.lr:g} at {base.batch} scales to "
        f"{wanted}",
        "a batch k times as large takes k times fewer steps: with the old rate training falls behind the baseline, "
        "with one that is too large it diverges",
        f"lr={linear:g}, reached by a linear warm-up over the first epochs",
        numbers={"lr": rate, "batch": batch, "linear": linear},
    )


def not_judged(evidence: Evidence) -> Iterator[str]:
    """Without a baseline: the option to pass. During a warm-up: that the rate still rises."""
    if not evidence.complete:
        return
    rates, batch, optimizer = _seen(evidence)
    if not rates or not batch:
        yield "learning rate: no optimizer step with a learning rate and samples of a DataLoader was seen"
    elif evidence.baseline is None:
        yield (
            f"learning rate: {optimizer} steps with lr {max(rates):g} at a global batch of {batch}; "
            "give --base-lr and --base-batch of a run that is known to be good"
        )
    elif rates[-1] > rates[0] * (1 + 1e-6):
        yield f"learning rate: it still rises, from {rates[0]:g} to {rates[-1]:g} (warm-up); run with more --steps"


def _seen(evidence: Evidence) -> tuple[list[float], int, str]:
    """Rates of rank 0 by step, the global batch, the optimizer's class."""
    steps = evidence.by_step("step")
    rates = [rows[0]["lr"] for rows in steps.values() if rows[0]["lr"] is not None]
    batches = [sum(row["samples"] for row in rows.values()) for rows in steps.values()]
    return rates, int(median(batches)) if batches else 0, next(iter(steps.values()))[0]["optimizer"] if steps else ""


def _is_adaptive(optimizer: str) -> bool:
    return any(name in optimizer.lower() for name in _ADAPTIVE)
