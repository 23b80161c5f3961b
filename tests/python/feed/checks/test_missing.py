"""ringdp/feed/checks/missing.py: samples that nobody draws."""

from __future__ import annotations

from play import checks, epochs_of, fixed, judged, numbered, sharded
from ringdp.attach.finding import problems
from torch.utils.data import DataLoader, Subset


def test_a_share_that_is_never_drawn():
    data = numbered(60)
    report = judged(lambda rank: epochs_of(sharded(data, rank, 3)), 2)
    (finding,) = [finding for finding in report.findings if finding.check == "missing"]
    assert finding.numbers == {"epoch": 1, "missing": 20, "samples": 60, "seen_share": 2 / 3}
    assert "20 of 60 samples (33.3%) were drawn by no rank" in finding.seen


def test_an_epoch_that_was_left_early_is_not_judged():
    report = judged(lambda rank: epochs_of(sharded(numbered(64), rank, 2), 2, steps=2), 2)
    assert report.findings == ()
    assert [row.missing for row in report.rows] == [None, None]


def test_subsets_that_together_are_the_whole_miss_nothing():
    data = numbered(30)
    parts = [Subset(data, range(rank, 30, 2)) for rank in range(2)]
    assert checks(judged(lambda rank: epochs_of(DataLoader(parts[rank], 5)), 2)) == []


def test_what_was_dropped_is_a_note():
    report = judged(lambda rank: epochs_of(sharded(numbered(65), rank, 2, drop_last=True)), 2)
    assert checks(report) == ["dropped"] and problems(report.findings) == []


def test_the_first_epoch_with_a_gap_is_named_once():
    halves = [[list(range(40))], [[*range(40, 79), 78]]]
    report = judged(lambda rank: epochs_of(fixed(numbered(80), halves[rank]), 3), 2)
    (finding,) = [f for f in report.findings if f.check == "missing"]
    assert finding.numbers["epoch"] == 1 and finding.numbers["missing"] == 1
