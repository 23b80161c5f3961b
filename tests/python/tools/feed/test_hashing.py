"""Equal bytes have equal hashes, whatever the batch looks like."""

from __future__ import annotations

from collections import namedtuple

import pytest
import torch
from ringdp.tools.feed.hashing import batch_size, is_label, sample_hashes

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
