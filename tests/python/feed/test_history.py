"""ringdp/feed/history.py: the latest epochs whole, those before as what was said of them."""

from __future__ import annotations

import pytest
from play import epochs_of, numbered, played, sharded
from ringdp.feed.history import KEPT, History


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
