"""From a calibration to the step time and memory of other numbers of ranks and other links."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from ringdp.tools.planner.calibration import Calibration, line_of, moved_bytes, slowest
from ringdp.tools.planner.coding import Coding
from ringdp.tools.planner.local_ranks import ProbeJob

_ELEMENT_BYTES = 4
_BUSIEST = 0.95  # communication leaves compute a little of a core


@dataclass(frozen=True)
class Bucket:
    """ready: share of the backward pass after which it can go. seconds: on its way."""

    ready: float
    seconds: float


@dataclass(frozen=True)
class Played:
    """Seconds. exposed: communication after the backward pass."""

    backward: float
    exposed: float


def play(backward: float, buckets: Sequence[Bucket], busy: float) -> Played:
    """One backward pass of `backward` seconds of compute.

    busy: share of a rank's core that communication takes while it runs; compute goes on with the rest.
    """
    rate = 1 - min(max(busy, 0.0), _BUSIEST)
    waiting = sorted(buckets, key=lambda bucket: bucket.ready)
    now = computed = left = 0.0
    ended = None
    position = 0
    while ended is None:
        while left == 0 and position < len(waiting) and waiting[position].ready * backward <= computed:
            left = waiting[position].seconds
            position += 1
        until = backward if position == len(waiting) or left else min(backward, waiting[position].ready * backward)
        speed = rate if left else 1.0
        passed = (until - computed) / speed
        if left and left < passed:
            passed = left
            computed += passed * speed
        else:
            computed = until
        now += passed
        left = max(0.0, left - passed)
        if computed >= backward:
            ended = now
    return Played(ended, left + sum(bucket.seconds for bucket in waiting[position:]))


@dataclass(frozen=True)
class Prediction:
    """Seconds of a step and its parts; alone: of a step of one rank; bytes of a rank at its peak."""

    ranks: int
    bandwidth: float | None
    compute: float
    communication: float
    exposed: float
    step: float
    alone: float
    memory: float

    @property
    def efficiency(self) -> float:
        """Throughput per rank over that of one rank alone."""
        return self.alone / self.step


def crowding(ranks: int, cores: int) -> float:
    """How many ranks take turns on a core."""
    return max(1.0, ranks / cores)


def predict(
    measured: Calibration, ranks: int, bandwidth: float | None = None, coding: Coding | None = None
) -> Prediction:
    """A step of `ranks` ranks on the same machine, one thread each; bandwidth: of their links if not the calibration's.

    Ranks beyond the cores take turns: compute and latency grow with them. Between hosts, every rank on its own, bytes
    are the all-reduce's 2(N-1)/N, and seconds per byte scale with the bandwidth. In shared memory all ranks' tensors
    pass through one memory: seconds per byte grow with the ranks.

    coding: buckets travel as codes, twice, in a thread that computes them on a rank's core.
    """
    crowd = crowding(ranks, measured.cores) / crowding(measured.ranks, measured.cores)
    between_hosts = measured.bandwidth is not None
    if between_hosts:
        slope = measured.seconds_per_byte * (measured.bandwidth / (bandwidth or measured.bandwidth))
        alpha = measured.alpha * crowd
    else:
        slope = measured.seconds_per_byte * ranks / measured.ranks
        alpha = measured.alpha * crowd * ranks / measured.ranks
    seconds = [alpha + slope * moved_bytes(size, ranks, between_hosts) for size in measured.buckets]
    busy = _busy(measured, ranks, slope) * crowd
    if coding is not None:
        codes = [coding.seconds * size / _ELEMENT_BYTES * crowding(ranks, measured.cores) for size in measured.buckets]
        ways = [2 * alpha + coding.share * (whole - alpha) for whole in seconds]
        busy = (busy * sum(ways) + sum(codes)) / max(1e-12, sum(ways) + sum(codes))
        seconds = [way + code for way, code in zip(ways, codes, strict=True)]
    seconds = seconds if ranks > 1 else [0.0] * len(seconds)
    backward = measured.backward * crowd
    buckets = [Bucket(ready, time) for ready, time in zip(measured.ready, seconds, strict=True)]
    played = play(backward, buckets, busy if ranks > 1 else 0.0)
    around = (measured.forward + measured.optimizer + measured.overhead) * crowd
    compute = (measured.forward + measured.optimizer) * crowd + backward
    step = around + played.backward + played.exposed
    alone = (around + backward) / crowding(ranks, measured.cores)
    link = bandwidth or measured.bandwidth
    return Prediction(ranks, link, compute, sum(seconds), played.exposed, step, alone, memory(measured, ranks))


def _busy(measured: Calibration, ranks: int, slope: float) -> float:
    """Share of a core that communication takes: it handles bytes, so it falls as the link gets slower."""
    if measured.bandwidth is None:
        return measured.cpu_per_second
    return measured.cpu_per_second * measured.seconds_per_byte / slope if slope else measured.cpu_per_second


def memory(measured: Calibration, ranks: int, stage: int = 0) -> float:
    """Bytes of a rank at a ZeRO stage: formulas, and what the process holds whatever it trains.

    At the end of forward, where data parallelism holds most: gradients are views of buckets, which stay.
    """
    return measured.base + measured.held(ranks, stage)


def calibrated(reports: Sequence[dict[str, Any]], job: ProbeJob, cores: int, bandwidth: float | None) -> Calibration:
    """A calibration from all ranks' reports of a job with sizes; bandwidth: of their links, None in shared memory."""
    ranks, between_hosts = len(reports), bandwidth is not None
    carried = [max(rows, key=lambda row: row[1]) for rows in zip(*(r["collectives"] for r in reports), strict=True)]
    points = [(moved_bytes(size, ranks, between_hosts), seconds) for size, seconds, _ in carried]
    alpha, slope = line_of(points)
    ready = [sorted(values)[len(values) // 2] for values in zip(*reports[0]["ready"], strict=True)]
    _, longest, cpu = max(carried)
    found = Calibration(
        workload=job.workload,
        micro_batch=job.micro_batch,
        ranks=ranks,
        cores=cores,
        bandwidth=bandwidth,
        forward=slowest(reports, "forward"),
        backward=slowest(reports, "backward"),
        optimizer=slowest(reports, "optimizer"),
        alpha=alpha,
        seconds_per_byte=slope,
        cpu_per_second=cpu / longest,
        step=slowest(reports, "step"),
        overhead=0.0,
        buckets=tuple(reports[0]["buckets"]),
        ready=tuple(ready),
        base=max(report["base"] for report in reports),
        peak=max(report["peak"] for report in reports),
        **reports[0]["sizes"],
    )
    return replace(found, overhead=max(0.0, found.step - predict(found, ranks).step))
