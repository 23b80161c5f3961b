"""ringdp/feed/audit.py: a script that watches its own loader, alone and on two ranks."""

from __future__ import annotations

import sys
from datetime import timedelta
from pathlib import Path

import pytest
import ringdp
from ranks import World
from ringdp.feed.hooks import _watchers
from torch.utils.data import DataLoader

sys.path.insert(0, str(Path(__file__).resolve().parent))
from play import numbered, sharded, shuffled


def train(kind, fail=False, epochs=2, timeout_s=60):
    """On a rank: what the audit's error was, the findings, and the report's rows."""
    import ranks

    here = ranks.HERE
    data = numbered(62)
    loader = shuffled(data, 0) if kind == "plain" else sharded(data, here.rank, here.size)
    if kind == "short" and here.rank == 1:
        epochs -= 1
    with ringdp.audit(loader, fail=fail, timeout=timedelta(seconds=timeout_s)) as audit:
        try:
            for epoch in range(epochs):
                if kind == "good":
                    loader.sampler.set_epoch(epoch)
                assert sum(1 for _ in audit) == len(audit)
        except ringdp.AuditError as error:
            return str(error), [], 0
        if kind != "short":
            report = audit.report()
            return "", [f.check for f in report.findings], len(report.rows)
        return "", [f.seen for f in audit.findings], 0


@pytest.fixture(scope="module")
def pair():
    with World(2) as world:
        world.join()
        yield world


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


def test_a_rank_that_does_not_come_to_an_epoch_is_named(pair):
    (_, seen, _), (_, others, _) = pair.run(train, "short", False, 2, 0.3)
    assert seen == ["at the beginning of an epoch rank 1 did not come within 0.3 s"]
    assert others == []


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
