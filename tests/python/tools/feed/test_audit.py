"""A script that watches its own loader, the report, and the picture of what was covered."""

from __future__ import annotations

import json

import pytest
import ringdp
import torch
from play import checks, epochs_of, feed_of, judged, numbered, played, ranks_of, sharded, shuffled, watching
from ringdp.tools.attach.finding import Finding
from ringdp.tools.feed.audit import KEPT, Audit, History
from ringdp.tools.feed.hooks import Watcher, _watchers
from ringdp.tools.feed.judge import judge, report_from, show, verdict
from ringdp.tools.feed.picture import Coverage, coverage, coverages, draw, has_matplotlib
from ringdp.tools.feed.recorder import Recorder
from torch.utils.data import DataLoader, Subset

DATA = numbered(64)


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
    with watching(Watcher(recorder, lambda source: True)):
        loader = sharded(numbered(64), rank, 2)
        for epoch in range(epochs):
            loader.sampler.set_epoch(epoch)
            list(loader)
            rows.append([])
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
    for draw_once in (lambda: list(loader.sampler), lambda: list(loader)):
        with ringdp.audit(loader.sampler) as audit:
            draw_once()
            assert audit.report().rows[0].drawn == 3


def test_something_else_is_refused():
    with pytest.raises(TypeError, match="a list is no"):
        ringdp.audit([1, 2])


# The report as a whole, and in print.


def test_a_clean_feed_has_a_table_and_no_findings():
    report = judged(lambda rank: epochs_of(sharded(DATA, rank, 4), 2), 4)
    assert report.findings == () and report.not_judged == ()
    assert [(row.epoch, row.steps, row.drawn, row.distinct, row.missing, row.by) for row in report.rows] == [
        (1, "2", 64, 64, 0, "index"),
        (2, "2", 64, 64, 0, "index"),
    ]
    assert report.cost.draws == 4 and 0 < report.cost.seconds <= report.cost.span


def test_problems_come_before_notes():
    data = numbered(63)

    def draw(rank):
        epochs_of(sharded(data, rank, 4), told=False)
        epochs_of(shuffled(data, 0), steps=1)

    assert checks(judged(draw, 4)) == ["duplicates", "padding"]


def test_a_report_survives_json():
    report = judged(lambda rank: epochs_of(shuffled(DATA, rank)), 2)
    assert report.findings
    assert report_from(json.loads(json.dumps(report.as_dict()))) == report


def test_ranks_without_records_are_named():
    ranks = ranks_of(lambda rank: rank < 2 and epochs_of(sharded(DATA, rank, 4)), 4)
    report = judge({rank: ranks[rank] for rank in range(2)}, only_training=False)
    assert report.findings == ()
    assert any("ranks 2, 3 of 4 left no records" in sentence for sentence in report.not_judged)


def test_a_loader_of_one_rank_is_not_judged():
    def draw(rank):
        if rank == 0:
            epochs_of(shuffled(DATA, 0))

    report = judged(draw, 2)
    assert report.findings == ()
    assert any("rank 1 did not draw from it" in sentence for sentence in report.not_judged)


def test_no_samples_and_one_rank():
    assert judge({}).not_judged == ("no rank has iterated a DataLoader or DistributedSampler",)
    alone = judged(lambda rank: epochs_of(shuffled(DATA, 0)), 1)
    assert alone.findings == () and "one rank has no other rank" in alone.not_judged[0]


def test_indices_of_which_nothing_was_compared_are_not_judged():
    data = numbered(100_000)
    report = judged(lambda rank: epochs_of(shuffled(data, rank), steps=2), 2)
    assert report.findings == () and report.rows[0].by == "not known"
    assert "have been compared yet" in report.not_judged[0]


def test_validation_loaders_are_named():
    report = judge(ranks_of(lambda rank: epochs_of(shuffled(DATA, 0), trained=False), 2))
    assert report.rows == ()
    assert "loader 0 (TensorDataset): no backward pass came between its draws" in report.not_judged


def test_the_table_the_findings_and_a_last_line(capsys):
    show(judged(lambda rank: epochs_of(shuffled(DATA, 0)), 2))
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "data feed of 2 ranks"
    assert lines[2].split()[-8:] == ["1", "8", "128", "64", "64", "0", "0", "index"]
    assert any(line.startswith("PROBLEM duplicates: ") for line in lines)
    assert lines[-1].startswith("1 problem; writing it down took ")


def test_verdicts():
    clean = judged(lambda rank: epochs_of(sharded(DATA, rank, 2)), 2)
    assert verdict(clean).startswith("no problems; ")
    assert verdict(judge({})) == "nothing was judged"


# Coverage as numbers, and as a PNG.

COVERED_DATA = numbered(60)


def covered(draw_as, world, columns):
    feed = feed_of(ranks_of(draw_as, world))
    return coverage(feed, feed.epochs[0], columns)


@pytest.mark.parametrize("columns", [60, 7, 100])
def test_shares_cover_everything_once(columns):
    found = covered(lambda rank: epochs_of(sharded(COVERED_DATA, rank, 3)), 3, columns)
    assert len(found.share) == 3 and len(found.together) == min(columns, 60)
    assert found.together == pytest.approx([1] * len(found.together))


def test_what_all_draw_is_seen_on_all():
    found = covered(lambda rank: epochs_of(shuffled(COVERED_DATA, rank)), 2, 6)
    assert found.share == (pytest.approx([1] * 6),) * 2


def test_columns_are_neighbouring_samples():
    found = covered(lambda rank: epochs_of(DataLoader(COVERED_DATA, 10), steps=1 + rank), 2, 6)
    assert found.share == ((1, 0, 0, 0, 0, 0), (1, 1, 0, 0, 0, 0))


def test_a_rank_that_drew_nothing_is_an_empty_row():
    found = covered(lambda rank: rank or epochs_of(DataLoader(COVERED_DATA, 10)), 2, 3)
    assert found.share[1] == (0, 0, 0)


def test_samples_of_subsets_lie_side_by_side():
    parts = [Subset(COVERED_DATA, range(50 + 4 * rank, 54 + 4 * rank)) for rank in range(2)]
    found = covered(lambda rank: epochs_of(DataLoader(parts[rank], 2)), 2, 2)
    assert (found.samples, found.share) == (8, ((1, 0), (0, 1)))


def test_an_epoch_without_a_sample_is_no_picture():
    ranks = ranks_of(lambda rank: epochs_of(DataLoader(COVERED_DATA, batch_sampler=[])), 2)
    assert coverages(ranks) == []


@pytest.mark.skipif(not has_matplotlib(), reason="matplotlib is not installed")
def test_the_first_and_the_last_epoch_are_drawn(tmp_path):
    def draw_as(rank):
        weight = torch.ones(1, requires_grad=True)
        loader = sharded(COVERED_DATA, rank, 2)
        for epoch in range(3):
            loader.sampler.set_epoch(epoch)
            for x, _ in loader:
                (weight * x).sum().backward()

    pictures = coverages(ranks_of(draw_as, 2))
    assert [picture.title.split(", ")[-1] for picture in pictures] == ["epoch 1", "epoch 3"]
    draw(pictures, tmp_path / "feed.png")
    assert (tmp_path / "feed.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.skipif(not has_matplotlib(), reason="matplotlib is not installed")
def test_ranks_are_whole_numbers(tmp_path, monkeypatch):
    from matplotlib.figure import Figure

    drawn = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, *_, **__: drawn.append(figure))
    draw([Coverage("", 4, ((1.0, 0.0), (0.0, 1.0)))], tmp_path / "feed.png")
    assert all(tick == round(tick) for tick in drawn[0].axes[0].get_yticks())
