"""`ringdp.audit(loader)`: watches one loader or sampler from within a script, at its first step and every epoch."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch.utils.data import DataLoader, Sampler

from ringdp.tools.attach.finding import Finding, problems
from ringdp.tools.attach.records import RankRecords
from ringdp.tools.feed.exchange import Exchange, late_finding, records_of
from ringdp.tools.feed.hooks import AuditError, Watcher, unwatch, watch
from ringdp.tools.feed.judge import Cost, Report, Row, judge, problems_first, report_from
from ringdp.tools.feed.recorder import Recorder

KEPT = 2  # epochs before the one that is being drawn: a repeated order shows in two that are complete


class History:
    """The history of one audited loader or sampler on `world` ranks. Its size does not grow with draws."""

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
    """Records of this epoch and later ones, records without an epoch, and of the costs the latest."""
    return rows[-1:] if kind == "cost" else [row for row in rows if row.get("epoch", first) >= first]


def audit(
    loader_or_sampler: Any,
    *,
    fail: bool = False,
    group: dist.ProcessGroup | None = None,
    timeout: timedelta = timedelta(minutes=5),
) -> Audit:
    """Watches what the ranks of `group` (default: all) draw from it; the loader itself stays in use, or iterate this.

    Every rank calls it, on its own loader, in the same order. At the first step of each epoch (its first backward pass,
    or its second batch) the ranks compare what they drew so far: new problems are a RuntimeWarning on rank 0, and with
    `fail` an AuditError on every rank. They meet through the store: rank 0 waits for at most `timeout`, the others for
    twice that; a rank that does not come is a problem of its own, and what it drew is judged when it does. The draws of
    the latest epochs are kept. Of a sampler draws are noted as it is asked, so with those that a DataLoader's workers
    ask for ahead. TypeError where it is no DataLoader or sampler.
    """
    if not isinstance(loader_or_sampler, (DataLoader, Sampler)):
        kind = type(loader_or_sampler).__name__
        raise TypeError(f"ringdp.audit: a {kind} is not a torch.utils.data.DataLoader or Sampler")
    return Audit(loader_or_sampler, fail, Exchange(group, timeout))


class Audit:
    """One audit; it lasts until close() or the end of a with block. `findings`: the problems so far, on every rank."""

    def __init__(self, source: Any, fail: bool, exchange: Exchange) -> None:
        self.source = source
        self.findings: tuple[Finding, ...] = ()
        self._fail = fail
        self._exchange = exchange
        self._rows: list[dict[str, Any]] = []
        self._history = History(exchange.size)
        self._recorder = Recorder(lambda row: self._rows.append(row), at_first_step=self._judge_now)
        self._watcher = Watcher(self._recorder, lambda other: other is source)
        watch(self._watcher, *(() if isinstance(source, DataLoader) else (type(source),)))

    def __iter__(self) -> Iterator[Any]:
        """The loader's."""
        return iter(self.source)

    def __len__(self) -> int:
        """The loader's."""
        return len(self.source)

    def __enter__(self) -> Audit:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Watches no longer."""
        unwatch(self._watcher)

    def report(self) -> Report:
        """Collective: everything drawn so far, judged, the same on every rank; `fail` raises nothing here."""
        self._recorder.note_cost()
        return self._compare()

    def _judge_now(self) -> None:
        known = {finding.check: finding for finding in self.findings}
        found = {finding.check: finding for finding in problems(self._compare().findings)}
        self.findings = tuple({**known, **found}.values())
        new = [finding for check, finding in found.items() if check not in known]
        if new and self._fail:
            raise AuditError("\n".join(map(str, new)))
        for finding in new if self._exchange.rank == 0 else ():
            warnings.warn(str(finding), RuntimeWarning, stacklevel=2)

    def _compare(self) -> Report:
        rows, self._rows = self._rows, []
        theirs, late = self._exchange.to_rank_0(rows)
        self._history.add(theirs)
        report = self._history.report()
        if late:
            report = replace(report, findings=(late_finding(late), *report.findings))
        try:
            return report_from(self._exchange.from_rank_0(report.as_dict()))
        except TimeoutError as error:
            findings = (late_finding(str(error)), *self.findings)
            return Report(self._exchange.size, (), findings, (), Cost(0.0, 0.0, 0))
