"""Ranks side by side, matched by loader, epoch and sample; repeated samples that are meant, against torch's sampler."""

from __future__ import annotations

import pytest
import torch
from play import epochs_of, feed_of, fixed, judged, numbered, played, ranks_of, records_by_rank, sharded
from ringdp.tools.attach.finding import problems
from ringdp.tools.feed.draws import feeds_of, unwatched
from ringdp.tools.feed.judge import judge
from torch.utils.data import DataLoader


def test_epochs_by_rank_and_index():
    data = numbered(10)
    feed = feed_of(ranks_of(lambda rank: epochs_of(sharded(data, rank, 2, 3, shuffle=False), 2), 2))
    assert (feed.world, feed.samples, feed.by, len(feed.epochs)) == (2, 10, "index", 2)
    assert feed.epochs[0].draws[1].batches == ((1, 3, 5), (7, 9))
    assert [epoch.draws[0].sampler_epoch for epoch in feed.epochs] == [0, 1]
    assert (feed.epochs[0].drawn, feed.epochs[0].steps, feed.epochs[0].ended(2)) == (10, (2, 2), True)
    assert set(feed.epochs[0].counts.values()) == {1}


def test_an_epoch_that_one_rank_left_early_has_not_ended():
    data = numbered(8)
    feed = feed_of(ranks_of(lambda rank: epochs_of(sharded(data, rank, 2, 2), steps=1 + rank), 2))
    assert (feed.epochs[0].steps, feed.epochs[0].ended(2)) == ((1, 2), False)


def test_a_look_into_a_loader_is_no_epoch():
    """On rank 0 only, at the beginning, between epochs and at the end."""

    def draw(rank):
        loader = sharded(numbered(16), rank, 2, 4)
        for epoch in range(2):
            for _ in range(2 * (1 - rank)):
                next(iter(loader))
            loader.sampler.set_epoch(epoch)
            epochs_of(loader, told=False)
        next(iter(loader))

    (feed,) = feeds_of(ranks_of(draw, 2))
    assert [epoch.number for epoch in feed.epochs] == [0, 1]
    assert all(epoch.ended(2) and set(epoch.counts.values()) == {1} for epoch in feed.epochs)


def test_loaders_without_a_backward_pass_are_left_out():
    def draw(rank):
        weight = torch.ones(1, requires_grad=True)
        epochs_of(DataLoader(numbered(4)), trained=False)
        for x, _ in sharded(numbered(8), rank, 2):
            (weight * x).sum().backward()

    ranks = ranks_of(draw, 2)
    assert [feed.number for feed in feeds_of(ranks)] == [1]
    assert unwatched(ranks) == ["loader 0 (TensorDataset)"]
    assert len(feeds_of(ranks, only_training=False)) == 2


@pytest.mark.parametrize("length", [61, 62, 63, 64, 65, 3])
@pytest.mark.parametrize("world", [2, 3, 8])
@pytest.mark.parametrize("shuffle", [False, True])
def test_a_distributed_sampler_s_padding_is_exactly_its_own(length, world, shuffle):
    data = numbered(length)
    report = judged(lambda rank: epochs_of(sharded(data, rank, world, 4, shuffle=shuffle)), world)
    assert problems(report.findings) == []
    assert (report.rows[0].padding, report.rows[0].repeated) == (-length % world, 0)
    assert report.rows[0].missing == 0


@pytest.mark.parametrize("world", [2, 3])
def test_what_it_drops_is_a_note(world):
    data = numbered(64 + world - 1)
    report = judged(lambda rank: epochs_of(sharded(data, rank, world, 4, drop_last=True)), world)
    assert problems(report.findings) == []
    assert report.rows[0].missing == (64 + world - 1) % world


def test_padding_is_known_by_content_too():
    """As of workers that hand out in any order: the repeated sample may be anywhere."""
    rows = played(lambda rank: epochs_of(sharded(numbered(101), rank, 2, 8)), 2)
    for row in (row for of_rank in rows.values() for row in of_rank if row["kind"] == "batch"):
        row["indices"] = None
    report = judge(records_by_rank(rows), only_training=False)
    assert problems(report.findings) == []
    assert (report.rows[0].padding, report.rows[0].repeated) == (1, 0)


def test_one_more_than_its_padding_is_no_padding():
    data = numbered(63)

    def draw(rank):
        loader = sharded(data, rank, 4, 4)
        indices = list(loader.sampler)
        if rank == 2:
            indices[3] = indices[7]
        loader.sampler.__class__ = type("Odd", (type(loader.sampler),), {"__iter__": lambda self: iter(indices)})
        epochs_of(loader)

    row = judged(draw, 4).rows[-1]  # before it comes the sampler that was listed
    assert (row.padding, row.repeated, row.missing) == (1, 1, 1)


def test_an_unknown_sampler_pads_when_it_makes_ranks_even_and_leaves_nothing_out():
    data = numbered(7)
    even = [[[0, 1], [2, 3]], [[4, 5], [6, 0]]]
    assert judged(lambda rank: epochs_of(fixed(data, even[rank])), 2).rows[0].padding == 1
    twice = [[[0, 1], [2, 3]], [[4, 5], [0, 5]]]  # 6 is never drawn
    row = judged(lambda rank: epochs_of(fixed(data, twice[rank])), 2).rows[0]
    assert (row.padding, row.repeated, row.missing) == (0, 2, 1)


def test_a_loader_that_drops_its_last_batch():
    data = numbered(67)
    given = {"batch_size": 8, "drop_last": True}

    def draw(rank):
        epochs_of(DataLoader(data, sampler=sharded(data, rank, 2).sampler, **given))

    report = judged(draw, 2)
    assert [finding.check for finding in report.findings] == ["dropped"]
    assert report.rows[0].missing == 67 - 2 * 4 * 8
