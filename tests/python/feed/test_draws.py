"""ringdp/feed/draws.py: ranks side by side, matched by loader, epoch and sample."""

from __future__ import annotations

import torch
from play import epochs_of, numbered, played, sharded
from ringdp.feed.draws import feeds_of, unwatched
from ringdp.feed.exchange import records_of
from torch.utils.data import DataLoader


def ranks_of(draw_as, world):
    return {rank: records_of(rank, world, rows) for rank, rows in played(draw_as, world).items()}


def test_epochs_by_rank_and_index():
    data = numbered(10)
    ranks = ranks_of(lambda rank: epochs_of(sharded(data, rank, 2, 3, shuffle=False), 2), 2)
    (feed,) = feeds_of(ranks, only_training=False)
    assert (feed.world, feed.samples, feed.by, len(feed.epochs)) == (2, 10, "index", 2)
    assert feed.epochs[0].draws[1].batches == ((1, 3, 5), (7, 9))
    assert [epoch.draws[0].sampler_epoch for epoch in feed.epochs] == [0, 1]
    assert (feed.epochs[0].drawn, feed.epochs[0].steps, feed.epochs[0].ended(2)) == (10, (2, 2), True)
    assert set(feed.epochs[0].counts.values()) == {1}


def test_an_epoch_that_one_rank_left_early_has_not_ended():
    data = numbered(8)
    ranks = ranks_of(lambda rank: epochs_of(sharded(data, rank, 2, 2), steps=1 + rank), 2)
    (feed,) = feeds_of(ranks, only_training=False)
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
