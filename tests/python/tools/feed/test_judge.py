"""The report as a whole, and in print."""

from __future__ import annotations

import json

from play import checks, epochs_of, judged, numbered, played, sharded, shuffled
from ringdp.tools.feed.exchange import records_of
from ringdp.tools.feed.judge import judge, report_from, show, verdict

DATA = numbered(64)


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
    rows = played(lambda rank: epochs_of(sharded(DATA, rank, 4)), 2)
    report = judge({rank: records_of(rank, 4, rows[rank]) for rank in rows}, only_training=False)
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
    rows = played(lambda rank: epochs_of(shuffled(DATA, 0), trained=False), 2)
    report = judge({rank: records_of(rank, 2, rows[rank]) for rank in rows})
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
