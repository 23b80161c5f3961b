"""What ranks tell each other, and which of their samples are the same."""

from __future__ import annotations

import random
from collections import namedtuple
from datetime import timedelta
from itertools import count
from threading import Thread

import pytest
import torch
import torch.distributed as dist
from play import epochs_of, feed_of, numbered, played, ranks_of, records_by_rank, sharded, shuffled
from ringdp.tools.feed import exchange
from ringdp.tools.feed.exchange import Exchange, late_finding
from ringdp.tools.feed.hashing import batch_size, is_label, sample_hashes
from ringdp.tools.feed.naming import Compared, divided, same_samples
from ringdp.tools.feed.recorder import HASHED_BATCHES
from torch.utils.data import DataLoader, Subset, TensorDataset

GENEROUS = timedelta(seconds=60)
SOON = timedelta(milliseconds=20)  # for who does not come at all


def seat(rank, size, store, timeout=GENEROUS):
    """An exchange of a rank that is a thread here."""
    made = Exchange(None, timeout)
    made.rank, made.size, made._store = rank, size, store
    return made


def test_alone_there_is_nothing_to_exchange():
    alone = Exchange(None, GENEROUS)
    assert alone.to_rank_0([{"kind": "x"}]) == ({0: [{"kind": "x"}]}, "")
    assert alone.from_rank_0("fine") == "fine"


def test_records_and_verdicts_of_two_rounds():
    store = dist.HashStore()
    seen = {}

    def rank(number):
        mine = seat(number, 3, store)
        for turn in range(2):
            got, late = mine.to_rank_0([{"kind": "batch", "indices": [number, turn]}])
            assert late == ""
            verdict = [rows[0]["indices"] for _, rows in sorted(got.items())] if number == 0 else None
            seen[number, turn] = mine.from_rank_0(verdict)

    threads = [Thread(target=rank, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert seen == {(number, turn): [[r, turn] for r in range(3)] for number in range(3) for turn in range(2)}


def test_ranks_that_do_not_come_are_named():
    store = dist.HashStore()
    early = seat(1, 3, store, SOON)
    early.to_rank_0([])
    assert seat(0, 3, store, SOON).to_rank_0([])[1] == "rank 2 did not come within 0.02 s"
    with pytest.raises(TimeoutError, match=r"rank 0 did not come within 0\.04 s"):
        early.from_rank_0(None)
    assert "rank 2 did not come" in late_finding("rank 2 did not come").seen


def test_what_a_late_rank_brings_is_handed_out_later_and_nothing_of_the_others_is_lost():
    store = dist.HashStore()
    judging, punctual, slow = (seat(rank, 3, store, SOON) for rank in range(3))
    punctual.to_rank_0([1])
    assert judging.to_rank_0([0]) == ({0: [0], 1: [1], 2: []}, "rank 2 did not come within 0.02 s")
    slow.to_rank_0([2])
    slow.to_rank_0([22])
    punctual.to_rank_0([11])
    assert judging.to_rank_0([]) == ({0: [], 1: [11], 2: [2, 22]}, "")


def test_a_rank_that_is_ahead_is_waited_for_in_its_own_round():
    store = dist.HashStore()
    judging, hasty = (seat(rank, 2, store, SOON) for rank in range(2))
    hasty.to_rank_0([1])
    hasty.to_rank_0([11])
    assert judging.to_rank_0([]) == ({0: [], 1: [1]}, "")
    assert judging.to_rank_0([]) == ({0: [], 1: [11]}, "")


def test_the_store_does_not_fill_up():
    store = dist.HashStore()
    judging, other = (seat(rank, 2, store) for rank in range(2))
    sizes = []
    for turn in range(5):
        other.to_rank_0([turn])
        judging.to_rank_0([turn])
        judging.from_rank_0(turn)
        assert other.from_rank_0(None) == turn
        sizes.append(store.num_keys())
    assert sizes == [1, 1, 1, 1, 1]


def test_audits_do_not_share_keys(monkeypatch):
    monkeypatch.setattr(exchange, "_audits", count())
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        first, second = Exchange(None, GENEROUS), Exchange(None, GENEROUS)
        first._store.set("key", "one")
        assert not second._store.check(["key"])
    finally:
        dist.destroy_process_group()


# Equal bytes have equal hashes, whatever the batch looks like.

Pair = namedtuple("Pair", "x y")
X = torch.arange(12.0).reshape(4, 3)
Y = torch.arange(4)


BATCHES = [X, [X, Y], (X, Y), {"x": X, "y": Y}, Pair(X, Y), [X, ["a", "b", "c", "d"]], {"n": {"x": X}}]


@pytest.mark.parametrize("batch", BATCHES)
def test_a_sample_has_its_hash_in_any_batch(batch):
    whole = sample_hashes(batch, batch_size(batch))
    assert len(set(whole)) == len(whole) == 4
    again = sample_hashes(batch, 4)
    assert whole == again


def test_rows_move_with_their_hashes():
    order = [2, 0, 3, 1]
    straight = sample_hashes([X, Y], 4)
    assert sample_hashes([X[order], Y[order]], 4) == [straight[i] for i in order]


@pytest.mark.parametrize(
    "tensor",
    [X.double(), X.half(), X.bfloat16(), X.to(torch.complex64).conj(), X > 5, X.int(), X.t().contiguous().t()],
)
def test_every_type_and_layout(tensor):
    hashes = sample_hashes(tensor, 4)
    assert all(hashes)
    assert (hashes[0] == hashes[3]) == bool((tensor[0] == tensor[3]).all())


def test_labels_are_what_augmentation_leaves_alone():
    noisy = X + torch.rand_like(X)
    assert sample_hashes([X, Y], 4, wanted=is_label) == sample_hashes([noisy, Y], 4, wanted=is_label)
    assert sample_hashes([X, Y], 4) != sample_hashes([noisy, Y], 4)
    assert sample_hashes([X], 4, wanted=is_label) == [""] * 4


@pytest.mark.parametrize("place", [0, slice(40_000, 47_000), -1])
def test_a_large_sample_is_hashed_in_pieces_from_end_to_end(place):
    large = torch.zeros(2, 100_000)  # a piece begins every 6,662 floats
    changed = large.clone()
    changed[1, place] = 1
    before, after = sample_hashes(large, 2), sample_hashes(changed, 2)
    assert before[0] == before[1] == after[0] != after[1]


def test_a_sample_without_bytes_has_no_hash():
    assert sample_hashes(object(), 1) == [""]
    assert sample_hashes([torch.empty(3, device="meta")], 3) == ["", "", ""]
    assert sample_hashes([torch.zeros(5, 2)], 3) == ["", "", ""]


@pytest.mark.parametrize("batch", BATCHES)
def test_only_some_places(batch):
    whole = sample_hashes(batch, 4)
    assert sample_hashes(batch, 4, [3, 1]) == [whole[3], whole[1]]
    assert sample_hashes(batch, 4, []) == []


def test_a_bare_sample():
    assert batch_size(torch.tensor(3.0)) == batch_size("text") == batch_size(object()) == 1
    assert sample_hashes("text", 1) == sample_hashes(b"text", 1) != sample_hashes("other", 1)
    assert len(set(sample_hashes(X, 1) + sample_hashes(X + 1, 1))) == 2


# Whether an index, or the bytes, say that two ranks have drawn the same sample.

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


def test_ranks_that_hold_different_data_under_the_same_indices():
    data = [TensorDataset(torch.arange(8.0) + 100 * rank) for rank in range(2)]
    feed = feed_of(ranks_of(lambda rank: epochs_of(DataLoader(data[rank], 4)), 2))
    assert (feed.by, feed.samples, max(feed.epochs[0].counts.values())) == ("own index", 16, 1)


def test_subsets_are_compared_by_the_indices_below():
    data = numbered(80)
    parts = [Subset(data, range(rank, 80, 2)) for rank in range(2)]
    feed = feed_of(ranks_of(lambda rank: epochs_of(DataLoader(parts[rank], 3)), 2))
    assert (feed.by, feed.samples) == ("index", 80)
    assert feed.epochs[0].draws[1].order == list(range(1, 80, 2))


@pytest.mark.parametrize(("steps", "by"), [(1, "not known"), (200, "own index")])
def test_ranks_with_much_data_of_their_own(steps, by):
    data = [TensorDataset(torch.arange(200_000.0) + 0.5 * rank) for rank in range(2)]
    feed = feed_of(ranks_of(lambda rank: epochs_of(shuffled(data[rank], rank, 32), steps=steps), 2))
    assert (feed.by, feed.epochs[0].drawn) == (by, len(feed.epochs[0].counts))


def test_much_data_that_ranks_share_and_shuffle_each_by_itself():
    data = numbered(200_000)
    feed = feed_of(ranks_of(lambda rank: epochs_of(shuffled(data, rank, 32), steps=200), 2))
    assert feed.by == "index" and len(feed.epochs[0].counts) < feed.epochs[0].drawn


def test_distributed_samplers_say_that_the_data_are_shared():
    assert feed_of(ranks_of(lambda rank: epochs_of(sharded(numbered(), rank, 2), steps=1), 2)).by == "index"


def test_bytes_that_padding_changes_do_not_hide_that_samplers_share_out(epochs=2):
    rows = played(lambda rank: epochs_of(sharded(numbered(), rank, 2), epochs), 2)
    for row in rows[1]:
        if row.get("contents"):
            row["contents"] = [f"padded {content}" for content in row["contents"]]
            row["labels"] = [f"padded {label}" for label in row["labels"]]
    assert feed_of(records_by_rank(rows)).by == "index"


def test_indices_that_are_hidden_on_one_rank_leave_the_hashes_of_the_other():
    rows = played(lambda rank: epochs_of(DataLoader(numbered(320), 2)), 2)
    for row in rows[1]:
        if row["kind"] == "batch":
            row.pop("hashed", None)
            row |= {"indices": None, "contents": row.get("contents", [])}
    feed = feed_of(records_by_rank(rows))
    assert (feed.by, feed.epochs[0].drawn) == ("content", 640)
    assert 640 - len(feed.epochs[0].counts) >= 2 * HASHED_BATCHES  # what both have hashed
