"""`ringdp.audit(loader)`: watches one loader or sampler from within a script, at its first step and every epoch."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch.utils.data import DataLoader, Sampler

from ringdp.attach.finding import Finding, problems
from ringdp.attach.records import RankRecords
from ringdp.feed.exchange import Exchange, late_finding, records_of
from ringdp.feed.hooks import AuditError, Watcher, unwatch, watch
from ringdp.feed.judge import Cost, Report, judge, report_from
from ringdp.feed.recorder import Recorder


def audit(
    loader_or_sampler: Any,
    *,
    fail: bool = False,
    group: dist.ProcessGroup | None = None,
    timeout: timedelta = timedelta(minutes=5),
) -> Audit:
    """Watches what the ranks of `group` (default: all) draw from it; the loader itself stays in use, or iterate this.

    Every rank calls it, on its own loader, in the same order. At the first batch of each epoch the ranks compare what
    they drew so far: new problems are a RuntimeWarning on rank 0, and with `fail` an AuditError on every rank. They
    meet through the store, for at most `timeout`; a rank that does not come is a problem of its own. TypeError where
    it is no DataLoader or sampler.
    """
    if not isinstance(loader_or_sampler, (DataLoader, Sampler)):
        kind = type(loader_or_sampler).__name__
        raise TypeError(f"ringdp.audit: a {kind} is no torch.utils.data.DataLoader or Sampler")
    return Audit(loader_or_sampler, fail, Exchange(group, timeout))


class Audit:
    """One audit; it lasts until close() or the end of a with block. `findings`: the problems so far, on every rank."""

    def __init__(self, source: Any, fail: bool, exchange: Exchange) -> None:
        self.source = source
        self.findings: tuple[Finding, ...] = ()
        self._fail = fail
        self._exchange = exchange
        self._rows: list[dict[str, Any]] = []
        self._known: dict[int, list[dict[str, Any]]] = {}
        self._recorder = Recorder(lambda row: self._rows.append(row), at_first_batch=self._judge_now)
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
        known = {finding.check for finding in self.findings}
        self.findings = tuple(problems(self._compare().findings))
        new = [finding for finding in self.findings if finding.check not in known]
        if new and self._fail:
            raise AuditError("\n".join(map(str, new)))
        for finding in new if self._exchange.rank == 0 else ():
            warnings.warn(str(finding), RuntimeWarning, stacklevel=2)

    def _compare(self) -> Report:
        rows, self._rows = self._rows, []
        try:
            for rank, theirs in self._exchange.to_rank_0(rows).items():
                self._known.setdefault(rank, []).extend(theirs)
            report = judge(self._records(), only_training=False)
        except TimeoutError as error:
            report = self._late(str(error))
        try:
            return report_from(self._exchange.from_rank_0(report.as_dict()))
        except TimeoutError as error:
            return self._late(str(error))

    def _late(self, message: str) -> Report:
        return Report(self._exchange.size, (), (late_finding(message),), (), Cost(0.0, 0.0, 0))

    def _records(self) -> dict[int, RankRecords]:
        return {rank: records_of(rank, self._exchange.size, rows) for rank, rows in self._known.items()}
