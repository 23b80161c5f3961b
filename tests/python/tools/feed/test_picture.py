"""Coverage as numbers, and as a PNG."""

from __future__ import annotations

import pytest
import torch
from play import epochs_of, numbered, played, sharded, shuffled
from ringdp.tools.feed.draws import feeds_of
from ringdp.tools.feed.exchange import records_of
from ringdp.tools.feed.picture import Coverage, coverage, coverages, draw, has_matplotlib
from torch.utils.data import DataLoader, Subset

DATA = numbered(60)


def ranks_of(draw_as, world):
    return {rank: records_of(rank, world, rows) for rank, rows in played(draw_as, world).items()}


def covered(draw_as, world, columns):
    (feed,) = feeds_of(ranks_of(draw_as, world), only_training=False)
    return coverage(feed, feed.epochs[0], columns)


@pytest.mark.parametrize("columns", [60, 7, 100])
def test_shares_cover_everything_once(columns):
    found = covered(lambda rank: epochs_of(sharded(DATA, rank, 3)), 3, columns)
    assert len(found.share) == 3 and len(found.together) == min(columns, 60)
    assert found.together == pytest.approx([1] * len(found.together))


def test_what_all_draw_is_seen_on_all():
    found = covered(lambda rank: epochs_of(shuffled(DATA, rank)), 2, 6)
    assert found.share == (pytest.approx([1] * 6),) * 2


def test_columns_are_neighbouring_samples():
    found = covered(lambda rank: epochs_of(DataLoader(DATA, 10), steps=1 + rank), 2, 6)
    assert found.share == ((1, 0, 0, 0, 0, 0), (1, 1, 0, 0, 0, 0))


def test_a_rank_that_drew_nothing_is_an_empty_row():
    found = covered(lambda rank: rank or epochs_of(DataLoader(DATA, 10)), 2, 3)
    assert found.share[1] == (0, 0, 0)


def test_samples_of_subsets_lie_side_by_side():
    parts = [Subset(DATA, range(50 + 4 * rank, 54 + 4 * rank)) for rank in range(2)]
    found = covered(lambda rank: epochs_of(DataLoader(parts[rank], 2)), 2, 2)
    assert (found.samples, found.share) == (8, ((1, 0), (0, 1)))


def test_an_epoch_without_a_sample_is_no_picture():
    ranks = ranks_of(lambda rank: epochs_of(DataLoader(DATA, batch_sampler=[])), 2)
    assert coverages(ranks) == []


@pytest.mark.skipif(not has_matplotlib(), reason="matplotlib is not installed")
def test_the_first_and_the_last_epoch_are_drawn(tmp_path):
    def draw_as(rank):
        weight = torch.ones(1, requires_grad=True)
        loader = sharded(DATA, rank, 2)
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
