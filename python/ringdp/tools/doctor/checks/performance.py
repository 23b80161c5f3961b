"""Exposed communication, a rank that others wait for, and a link that all ranks wait for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from statistics import fmean, median

from ringdp.text.units import names
from ringdp.tools.attach.finding import Finding
from ringdp.tools.doctor.evidence import WARM_UP, Evidence
from ringdp.tools.observe.blame import MOST, chance, delay

_NONE = 0.02
_MATTERS = 0.05  # of a step
_FIRST_BUCKET = 1 << 20  # bytes: a model that small is one bucket, and has nothing to overlap with


def check_overlap(evidence: Evidence) -> Iterator[Finding]:
    """When the median overlap of the warm steps is zero, and the exposed time matters."""
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


def overlap_not_judged(evidence: Evidence) -> Iterator[str]:
    """Without a wrapper there are no figures; with a small model nothing to overlap."""
    if evidence.complete and not evidence.model():
        yield "overlap: no DistributedDataParallel made three steps"
    elif evidence.model() and evidence.model()["bytes"] <= _FIRST_BUCKET:
        yield f"overlap: {evidence.model()['bytes']:,} bytes of gradients are one bucket: nothing to overlap with"
    elif evidence.complete and not evidence.warm("ddp"):
        yield f"overlap: that takes {WARM_UP + 2} steps; give more --steps"


_FEWEST_STEPS = 8  # after the warm-up
_CHANCE = 0.01  # that a rank is last so often by chance: jitter wanders, a straggler stays
_SHARE = 0.2  # of a step
_LINK_SHARE = 0.3
_LEAST_S = 0.015  # a few time slices, which any rank loses on a busy machine
_LINK_BYTES = 1 << 20
_DATA, _FORWARD, _BACKWARD = "in its data loader", "in the forward pass", "in the backward pass"
_ELSEWHERE = "outside of forward, backward and loader"
_MICRO_BATCHES = "in its micro-batches"  # wrappers time the last one only
_WHY = "all ranks step together, so each step is as long as the slowest rank's and the slowest link's"


def check_stragglers(evidence: Evidence) -> Iterator[Finding]:
    """The rank that waits least makes the others wait; where all wait, it is for bytes."""
    waits = evidence.waits() if evidence.complete else {}
    if len(waits) < _FEWEST_STEPS:
        return
    slow = _slow_rank(evidence, waits)
    if slow is not None:
        yield slow
        return
    transfer = median(min(rows.values()) for rows in waits.values())
    size = evidence.model().get("bytes", 0)
    if size >= _LINK_BYTES and transfer >= max(_LEAST_S, _LINK_SHARE * evidence.step_seconds()):
        yield _link(evidence, transfer, size)


def stragglers_not_judged(evidence: Evidence) -> Iterator[str]:
    """A verdict needs several steps."""
    if evidence.complete and len(evidence.waits()) < _FEWEST_STEPS:
        yield f"stragglers and links: that takes {WARM_UP + _FEWEST_STEPS + 1} steps; give more --steps"


def _slow_rank(evidence: Evidence, waits: dict[int, dict[int, float]]) -> Finding | None:
    """Sums and not medians: a loader with k workers holds up one step in k."""
    delays = [delay(rows) for rows in waits.values()]
    total = sum(lost for _, lost in delays)
    lost_by: Counter[int] = Counter()
    for rank, lost in delays:
        lost_by[rank] += lost
    rank, lost = lost_by.most_common(1)[0]
    counted = [last for last, seconds in delays if seconds >= total / len(delays) / 2]  # the others' order is noise
    excess, step = lost / len(waits), fmean(row[rank]["seconds"] for row in evidence.warm("step").values())
    if lost < MOST * total or chance(counted.count(rank), len(counted), evidence.world) > _CHANCE:
        return None
    longer = _longer(evidence, rank)
    passes = longer.get(_FORWARD, 0.0) + longer.get(_BACKWARD, 0.0)
    explained = max(passes, *longer.values())
    if excess < max(_LEAST_S, _SHARE * step) or explained < MOST * excess:  # a little of everything is a busy machine
        return None
    part, more = max(longer.items(), key=lambda item: item[1])
    return Finding(
        "straggler",
        f"rank {rank} makes {names(r for r in evidence.ranks if r != rank)} wait {1e3 * excess:.0f} ms of each step of "
        f"{1e3 * step:.0f} ms; it takes {1e3 * more:.0f} ms longer than they do {part}",
        _WHY,
        f"look at rank {rank}'s host and at what it does {part}: a slower or throttled core, other processes, more "
        "samples or longer ones, logging or checkpoints on one rank, a loader with too few workers",
        (rank,),
        numbers={"wait_ms": 1e3 * excess, "where": part, "longer_ms": 1e3 * more},
    )


def _longer(evidence: Evidence, rank: int) -> dict[str, float]:
    """By part of a step: seconds that this rank takes longer than the others."""
    steps, ddp = evidence.warm("step"), evidence.warm("ddp")
    parts = {_DATA: {r: fmean(rows[r]["data"] for rows in steps.values()) for r in evidence.ranks}}
    if ddp:
        parts[_FORWARD] = {  # which the wrapper begins by waiting for buffers
            r: fmean(row[r]["forward"] - steps[n][r]["buffers"] for n, row in ddp.items() if n in steps)
            for r in evidence.ranks
        }
        parts[_BACKWARD] = {r: fmean(row[r]["backward"] for row in ddp.values()) for r in evidence.ranks}
    micro_batches = any(row["backwards"] > 1 for rows in steps.values() for row in rows.values())
    if micro_batches:
        parts = {_DATA: parts[_DATA]}
    waits = evidence.waits()
    busy = {r: fmean(steps[n][r]["seconds"] - rows[r] for n, rows in waits.items()) for r in evidence.ranks}
    rest = _MICRO_BATCHES if micro_batches else _ELSEWHERE
    parts[rest] = {r: busy[r] - sum(seconds[r] for seconds in parts.values()) for r in evidence.ranks}
    return {part: s[rank] - median(s[r] for r in evidence.ranks if r != rank) for part, s in parts.items()}


def _link(evidence: Evidence, transfer: float, size: int) -> Finding:
    step = evidence.step_seconds()
    return Finding(
        "link",
        f"every rank waits at least {1e3 * transfer:.0f} ms of each step of {1e3 * step:.0f} ms for communication, and "
        f"none later than the others: {size:,} bytes of gradients at {size / transfer / 1e9:.2f} GB/s",
        _WHY,
        "a link that is slow or shared: see `ringdp info` for the interface, RINGDP_SOCKET_IFNAME for another; fewer "
        "bytes (RINGDP_WIRE=bf16), larger batches, or accumulation under no_sync()",
        numbers={"wait_ms": 1e3 * transfer, "bytes": size, "bytes_per_second": size / transfer},
    )
