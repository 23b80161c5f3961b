"""Duplicate, missing, stale and uneven samples: what `ringdp audit` finds, in the steps of this run (B19, F2)."""

from __future__ import annotations

from collections.abc import Iterator

from ringdp.attach.finding import Finding, problems
from ringdp.doctor.evidence import Evidence
from ringdp.feed.judge import judge


def check(evidence: Evidence) -> Iterator[Finding]:
    """Its problems."""
    yield from problems(judge(evidence.ranks).findings)


def not_judged(evidence: Evidence) -> Iterator[str]:
    """Epochs are longer than most short runs."""
    rows = judge(evidence.ranks).rows
    if evidence.world > 1 and not rows:
        yield "data feed: no DataLoader was drawn from between backward passes"
    elif rows and max(row.epoch for row in rows) < 2:
        yield "data feed: no second epoch was begun, so set_epoch() was not looked at; `ringdp audit` runs to the end"
