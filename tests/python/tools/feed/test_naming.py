"""Whether an index, or the bytes, say that two ranks have drawn the same sample."""

from __future__ import annotations

import random

import pytest
import torch
from play import epochs_of, numbered, played, sharded, shuffled
from ringdp.tools.feed.draws import feeds_of
from ringdp.tools.feed.exchange import records_of
from ringdp.tools.feed.naming import Compared, divided, same_samples
from ringdp.tools.feed.recorder import HASHED_BATCHES
from torch.utils.data import DataLoader, Subset, TensorDataset

AUGMENTED = [Compared(False, True, str(i % 10)) for i in range(20)]
OTHER_DATA = [Compared(False, i % 10 == 0, str(i % 10)) for i in range(20)]


@pytest.mark.parametrize(
    ("pairs", "same"),
    [
        ([], None),
        ([Compared(True, True)], True),
        (AUGMENTED, True),
        (OTHER_DATA, False),
        ([Compared(False, True, "0")] * 9, False),  # one label says nothing
        ([Compared(False, False)] * 9, False),
        ([Compared(True, True), Compared(False, False)], True),
    ],
)
def test_bytes_decide_and_then_labels(pairs, same):
    assert same_samples(pairs) is same


@pytest.mark.parametrize(
    ("ranks", "samples", "is_divided"),
    [
        ([range(500), range(500, 1000)], 1000, True),
        ([range(500), range(499, 999)], 1000, True),  # one in a thousand twice
        ([range(500), range(400, 900)], 1000, False),  # 100 in common, where 250 would be chance
        ([range(4), range(4, 8)], 1000, False),  # too early to say
        ([range(100 * rank, 100 * rank + 100) for rank in range(8)], 1000, True),
        ([[], []], 0, False),
    ],
)
def test_shares_have_hardly_an_index_in_common(ranks, samples, is_divided):
    assert divided(ranks, samples) is is_divided


def test_unrelated_draws_are_no_shares():
    for seed in range(200):
        draw = random.Random(seed)
        assert not divided([set(draw.sample(range(1000), 150)) for _ in range(2)], 1000)


def ranks_of(draw_as, world):
    return {rank: records_of(rank, world, rows) for rank, rows in played(draw_as, world).items()}


def test_ranks_that_hold_different_data_under_the_same_indices():
    data = [TensorDataset(torch.arange(8.0) + 100 * rank) for rank in range(2)]
    (feed,) = feeds_of(ranks_of(lambda rank: epochs_of(DataLoader(data[rank], 4)), 2), only_training=False)
    assert (feed.by, feed.samples, max(feed.epochs[0].counts.values())) == ("own index", 16, 1)


def test_subsets_are_compared_by_the_indices_below():
    data = numbered(80)
    parts = [Subset(data, range(rank, 80, 2)) for rank in range(2)]
    (feed,) = feeds_of(ranks_of(lambda rank: epochs_of(DataLoader(parts[rank], 3)), 2), only_training=False)
    assert (feed.by, feed.samples) == ("index", 80)
    assert feed.epochs[0].draws[1].order == list(range(1, 80, 2))


@pytest.mark.parametrize(("steps", "by"), [(1, "not known"), (200, "own index")])
def test_ranks_with_much_data_of_their_own(steps, by):
    data = [TensorDataset(torch.arange(200_000.0) + 0.5 * rank) for rank in range(2)]
    ranks = ranks_of(lambda rank: epochs_of(shuffled(data[rank], rank, 32), steps=steps), 2)
    (feed,) = feeds_of(ranks, only_training=False)
    assert (feed.by, feed.epochs[0].drawn) == (by, len(feed.epochs[0].counts))


def test_much_data_that_ranks_share_and_shuffle_each_by_itself():
    data = numbered(200_000)
    ranks = ranks_of(lambda rank: epochs_of(shuffled(data, rank, 32), steps=200), 2)
    (feed,) = feeds_of(ranks, only_training=False)
    assert feed.by == "index" and len(feed.epochs[0].counts) < feed.epochs[0].drawn


def test_distributed_samplers_say_that_the_data_are_shared():
    ranks = ranks_of(lambda rank: epochs_of(sharded(numbered(), rank, 2), steps=1), 2)
    assert feeds_of(ranks, only_training=False)[0].by == "index"


def test_bytes_that_padding_changes_do_not_hide_that_samplers_share_out(epochs=2):
    rows = played(lambda rank: epochs_of(sharded(numbered(), rank, 2), epochs), 2)
    for row in rows[1]:
        if row.get("contents"):
            row["contents"] = [f"padded {content}" for content in row["contents"]]
            row["labels"] = [f"padded {label}" for label in row["labels"]]
    (feed,) = feeds_of({rank: records_of(rank, 2, rows[rank]) for rank in rows}, only_training=False)
    assert feed.by == "index"


def test_indices_that_are_hidden_on_one_rank_leave_the_hashes_of_the_other():
    rows = played(lambda rank: epochs_of(DataLoader(numbered(320), 2)), 2)
    for row in rows[1]:
        if row["kind"] == "batch":
            row.pop("hashed", None)
            row |= {"indices": None, "contents": row.get("contents", [])}
    (feed,) = feeds_of({rank: records_of(rank, 2, rows[rank]) for rank in rows}, only_training=False)
    assert (feed.by, feed.epochs[0].drawn) == ("content", 640)
    assert 640 - len(feed.epochs[0].counts) >= 2 * HASHED_BATCHES  # what both have hashed
