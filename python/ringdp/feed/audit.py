"""`ringdp.audit(loader)`: watches one loader or sampler from within a script, at its first step and every epoch."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch.utils.data import DataLoader, Sampler

from ringdp.attach.finding import Finding, problems
from ringdp.feed.exchange import Exchange, late_finding
from ringdp.feed.history import History
from ringdp.feed.hooks import AuditError, Watcher, unwatch, watch
from ringdp.feed.judge import Cost, Report, report_from
from ringdp.feed.recorder import Recorder


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
