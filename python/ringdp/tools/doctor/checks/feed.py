"""Duplicate, missing, stale and uneven samples: what `ringdp audit` finds, in the steps of this run."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil

from ringdp.tools.attach.finding import Finding, problems
from ringdp.tools.doctor.evidence import Evidence
from ringdp.tools.feed.judge import judge


def check(evidence: Evidence) -> Iterator[Finding]:
    """The problems that the audit finds; its notes are left out."""
    yield from problems(judge(evidence.ranks).findings)


def not_judged(evidence: Evidence) -> Iterator[str]:
    """Epochs are longer than most short runs."""
    rows = judge(evidence.ranks).rows
    if evidence.world > 1 and not rows:
        yield "data feed: no DataLoader was drawn from between backward passes"
    elif rows and max(row.epoch for row in rows) < 2:
        told = any(records.of("set_epoch") for records in evidence.ranks.values())
        length = _epoch(evidence)
        more = f"--steps above {length}, the batches of an epoch," if length else "--steps above those of an epoch"
        yield (
            f"data feed: set_epoch() was {'called' if told else 'not called yet'}, but whether the second epoch has an "
            f"order of its own was not looked at: give {more} or take `ringdp audit`, which runs to the end"
        )


def _epoch(evidence: Evidence) -> int:
    """Batches per rank in an epoch of the largest loader with a DistributedSampler; 0 where there is none."""
    loaders = [row for records in evidence.ranks.values() for row in records.of("loader")]
    sharded = [row for row in loaders if row["length"] and row["replicas"] and row["batch_size"]]
    return max((ceil(ceil(row["length"] / row["replicas"]) / row["batch_size"]) for row in sharded), default=0)
