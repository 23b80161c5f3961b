"""What rank 0 of an in-script audit knows: the latest epochs' draws, and of those before only what was said of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ringdp.attach.finding import Finding
from ringdp.attach.records import RankRecords
from ringdp.feed.exchange import records_of
from ringdp.feed.judge import Report, Row, judge, problems_first

KEPT = 2  # epochs before the one that is being drawn: a repeated order shows in two that are complete


class History:
    """Of the one loader or sampler that is audited, drawn from by `world` ranks. Its size does not grow with draws."""

    def __init__(self, world: int) -> None:
        self._world = world
        self._records: dict[int, RankRecords] = {}
        self._rows: tuple[Row, ...] = ()
        self._findings: dict[str, Finding] = {}

    def add(self, rows: Mapping[int, list[dict[str, Any]]]) -> None:
        """What ranks have drawn since the last time, by rank, each in order."""
        for rank, new in rows.items():
            records = self._records.setdefault(rank, records_of(rank, self._world, []))
            for row in new:
                records.kinds.setdefault(row["kind"], []).append(row)

    def report(self) -> Report:
        """On everything so far."""
        judged = judge(self._records, only_training=False)
        findings = {**{finding.check: finding for finding in judged.findings}, **self._findings}
        report = replace(judged, rows=(*self._rows, *judged.rows), findings=problems_first(findings.values()))
        self._forget(report)
        return report

    def _forget(self, report: Report) -> None:
        """Draws of epochs that all ranks have left behind."""
        latest = [max((row["epoch"] for row in records.of("epoch")), default=0) for records in self._records.values()]
        first = min(latest) - KEPT if len(latest) == self._world else 0
        self._rows = tuple(row for row in report.rows if row.epoch <= first)
        of_epoch = ((finding, finding.numbers.get("epoch")) for finding in report.findings)
        # The first epoch that is kept too: that it repeats the one before cannot be found again.
        self._findings = {finding.check: finding for finding, epoch in of_epoch if epoch and epoch <= first + 1}
        for records in self._records.values():
            records.kinds = {kind: _since(first, kind, rows) for kind, rows in records.kinds.items()}


def _since(first: int, kind: str, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Those of this epoch and later ones; what belongs to no epoch stays, of the costs the latest."""
    return rows[-1:] if kind == "cost" else [row for row in rows if row.get("epoch", first) >= first]
