"""A script that watches its own loader, alone and on two ranks; the latest epochs whole, earlier ones as findings."""

from __future__ import annotations

import pytest
import ringdp
import torch
from play import epochs_of, numbered, played, sharded, shuffled
from ringdp.tools.attach.finding import Finding
from ringdp.tools.feed.audit import KEPT, Audit, History
from ringdp.tools.feed.hooks import Watcher, _watchers, unwatch, watch
from ringdp.tools.feed.recorder import Recorder
from torch.utils.data import DataLoader


def by_epoch(rows, epochs):
    """A rank's rows in the portions in which an audit sends them: up to an epoch's first batch."""
    portions = [[] for _ in range(epochs + 1)]
    turn = 0
    for row in rows:
        portions[turn].append(row)
        if row["kind"] == "batch" and sum(r["kind"] == "batch" for r in rows[: rows.index(row)]) % 4 == 0:
            turn += 1
    return portions


def told(stale, epochs):
    """Two ranks' portions; set_epoch() is forgotten before the epochs in `stale`."""

    def draw(rank):
        loader = sharded(DATA, rank, 2)
        for epoch in range(epochs):
            if epoch not in stale:
                loader.sampler.set_epoch(epoch)
            epochs_of(loader, told=False)

    rows = played(draw, 2)
    return [by_epoch(rows[rank], epochs) for rank in range(2)]


DATA = numbered(64)


def size_of(history):
    return sum(len(rows) for records in history._records.values() for rows in records.kinds.values())


@pytest.mark.parametrize("stale", [(), (1,)])
def test_rows_and_findings_outlive_the_draws(stale):
    history = History(2)
    sizes = []
    for portions in zip(*told(stale, 8), strict=True):
        history.add(dict(enumerate(portions)))
        report = history.report()
        sizes.append(size_of(history))
    assert [finding.numbers["epoch"] for finding in report.findings] == [2] * len(stale)
    assert [(row.epoch, row.drawn, row.missing) for row in report.rows] == [(n, 64, 0) for n in range(1, 9)]
    assert len(set(sizes[KEPT + 1 : -1])) == 1


def test_nothing_is_forgotten_before_all_ranks_are_that_far():
    history = History(2)
    ahead, behind = told((), 6)
    for portion in ahead:
        history.add({0: portion})
        history.report()
    for portion in behind:
        history.add({1: portion})
        report = history.report()
    assert [(row.drawn, row.missing) for row in report.rows] == [(64, 0)] * 6


def train(kind, fail=False, epochs=2):
    """On a rank: what the audit's error was, the findings, and the report's rows."""
    import ranks

    here = ranks.HERE
    data = numbered(62)
    loader = shuffled(data, 0) if kind == "plain" else sharded(data, here.rank, here.size)
    with ringdp.audit(loader, fail=fail) as audit:
        try:
            for epoch in range(epochs):
                if kind == "good":
                    loader.sampler.set_epoch(epoch)
                for _ in audit:
                    torch.ones(1, requires_grad=True).sum().backward()
        except ringdp.AuditError as error:
            return str(error), [], 0
        report = audit.report()
        return "", [f.check for f in report.findings], len(report.rows)


def test_a_good_feed_is_reported_alike_on_all_ranks(pair):
    assert pair.run(train, "good") == [("", [], 2)] * 2


def test_findings_are_on_all_ranks_and_a_warning_on_rank_0(pair):
    before = pair.stderr(1)
    assert pair.run(train, "plain") == [("", ["duplicates"], 2)] * 2
    assert "PROBLEM duplicates" in pair.stderr(0)
    assert pair.stderr(1) == before


FOUND = [("plain", "at step 1 8 of 16 samples are distinct (50.0%)"), ("stale", "stale epoch")]


@pytest.mark.parametrize(("kind", "found"), FOUND)
def test_failing_raises_on_all_ranks(pair, kind, found):
    for error, _, _ in pair.run(train, kind, True):
        assert found in error


class Seated:
    """In place of an exchange: rank 0 of 2. `brings`: what rank 1 has, by round; None: it did not come."""

    rank, size = 0, 2

    def __init__(self, *brings):
        self.brings = list(brings)
        self.verdict = True

    def to_rank_0(self, rows):
        theirs = self.brings.pop(0)
        return {0: rows, 1: theirs or []}, "" if theirs is not None else "rank 1 did not come within 1 s"

    def from_rank_0(self, verdict):
        if not self.verdict:
            raise TimeoutError("rank 0 did not come within 2 s")
        return verdict


def draws_of(rank, epochs):
    """The rows that this rank's audit sends, a list per epoch."""
    rows = [[]]
    recorder = Recorder(lambda row: rows[-1].append(row))
    watcher = Watcher(recorder, lambda source: True)
    watch(watcher)
    try:
        loader = sharded(numbered(64), rank, 2)
        for epoch in range(epochs):
            loader.sampler.set_epoch(epoch)
            list(loader)
            rows.append([])
    finally:
        unwatch(watcher)
    return rows[:-1]


def audited(seat, epochs):
    """Rank 0's audit after so many epochs, and the report."""
    loader = sharded(numbered(64), 0, 2)
    with Audit(loader, False, seat) as audit:
        for epoch in range(epochs):
            loader.sampler.set_epoch(epoch)
            list(audit)
        return audit, audit.report()


def test_a_rank_that_does_not_come_to_an_epoch_is_named_and_judged_when_it_comes():
    first, second, third = draws_of(1, 3)
    with pytest.warns(RuntimeWarning, match="at the beginning of an epoch rank 1 did not come within 1 s"):
        audit, report = audited(Seated([], None, first + second, third), 3)
    assert [finding.check for finding in audit.findings] == ["late rank"]
    assert report.findings == ()
    assert [(row.drawn, row.missing) for row in report.rows] == [(64, 0)] * 3


def test_a_verdict_that_does_not_come_takes_no_findings_back():
    seat = Seated(*[[]] * 3)
    audit, _ = audited(seat, 2)
    audit.findings = (Finding("duplicates", "", "", ""),)
    seat.verdict, seat.brings = False, [[]]
    assert [finding.check for finding in audit.report().findings] == ["late rank", "duplicates"]


def test_alone_it_works_without_a_group():
    data = numbered(6)
    with ringdp.audit(DataLoader(data, 2)) as audit:
        assert [len(x) for x, _ in audit] == [2, 2, 2]
        assert audit.report().rows[0].drawn == 6
    assert _watchers == []


def test_a_sampler_is_watched_too():
    loader = sharded(numbered(6), 0, 2)
    for draw in (lambda: list(loader.sampler), lambda: list(loader)):
        with ringdp.audit(loader.sampler) as audit:
            draw()
            assert audit.report().rows[0].drawn == 3


def test_something_else_is_refused():
    with pytest.raises(TypeError, match="a list is no"):
        ringdp.audit([1, 2])
