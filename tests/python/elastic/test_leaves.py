"""Leaves: a pure function of (epoch, step, leaf), and what ranks get of it."""

from __future__ import annotations

import pytest
import torch
from ringdp.elastic import Leaves
from ringdp.elastic.leaves import _permutation
from torch.utils.data import DataLoader


def of_epoch(leaves: Leaves, epoch: int) -> list[int]:
    """In the order of steps and leaves."""
    steps, numbers = range(leaves.steps(epoch)), range(leaves.micro_batches)
    return [index for step in steps for leaf in numbers for index in leaves.indices(epoch, step, leaf)]


def test_an_epoch_has_each_sample_once_but_the_dropped_ones():
    leaves = Leaves(50, micro_batch=3, micro_batches=4, seed=1)
    for epoch in range(3):
        seen = of_epoch(leaves, epoch)
        assert len(set(seen)) == len(seen) == 48 == 50 - leaves.left(epoch)
    assert of_epoch(leaves, 0) != of_epoch(leaves, 1)
    assert of_epoch(leaves, 0) == of_epoch(Leaves(50, micro_batch=3, micro_batches=4, seed=1), 0)
    assert of_epoch(leaves, 0) != of_epoch(Leaves(50, micro_batch=3, micro_batches=4, seed=2), 0)


@pytest.mark.parametrize("length", [5, 50, 48])
def test_a_remainder_is_carried_into_the_next_epoch(length):
    leaves = Leaves(length, micro_batch=3, micro_batches=4, remainder="carry")
    seen = [index for epoch in range(24) for index in of_epoch(leaves, epoch)]
    assert len(seen) == 24 * length - leaves.left(23) == leaves.first_step(24) * 12
    for epoch in range(len(seen) // length):
        assert sorted(seen[epoch * length : (epoch + 1) * length]) == list(range(length))


@pytest.mark.parametrize("remainder", ["drop", "carry"])
def test_a_micro_batch_is_a_piece_of_the_epochs_permutations_one_after_the_other(remainder):
    """Also where it is longer than an epoch. The permutations are kept as tensors, 8 bytes per sample."""
    leaves = Leaves(12 if remainder == "drop" else 5, micro_batch=6, micro_batches=2, seed=4, remainder=remainder)
    whole = [n for epoch in range(9) for n in _permutation(leaves.dataset_len, 4, epoch).tolist()]
    found = [index for epoch in range(9) for index in of_epoch(leaves, epoch)]
    assert found == whole[: len(found)] and len(found) > 30
    assert all(type(index) is int for index in found)
    kept = _permutation(10**4, 0, 0)
    assert isinstance(kept, torch.Tensor) and kept.nbytes == 8 * 10**4


@pytest.mark.parametrize("ranks", [1, 2, 3, 5, 9])
def test_ranks_share_the_leaves_of_every_step(ranks):
    leaves = Leaves(100, micro_batch=2, micro_batches=8)
    by_rank = [leaves.mine(rank, ranks) for rank in range(ranks)]
    assert sorted(leaf for mine in by_rank for leaf in mine) == list(range(8))
    assert max(map(len, by_rank)) - min(map(len, by_rank)) <= 1


def test_a_data_loader_with_workers_yields_the_batches_of_a_rank():
    leaves = Leaves(40, micro_batch=2, micro_batches=5, rank=1, ranks=2)
    leaves.set_epoch(3)
    loader = DataLoader(range(40), batch_sampler=leaves, num_workers=1)
    want = [leaves.indices(3, step, leaf) for step in range(4) for leaf in leaves.mine()]
    assert [batch.tolist() for batch in loader] == want
    assert len(loader) == len(want) == 4 * len(leaves.mine(1, 2))


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"micro_batch": 0}, "micro_batch=0"),
        ({"micro_batches": 0}, "micro_batches=0"),
        ({"dataset_len": None}, "a data set without a length"),
        ({"micro_batch": True}, "micro_batch=True, must be a whole number"),
        ({"seed": "1"}, "seed='1', must be a whole number"),
        ({"in_rounds": 1}, "in_rounds=1, must be True or False"),
        ({"rank": -1, "ranks": 2}, "rank=-1, must be a whole number of at least 0"),
        ({"rank": 0, "ranks": True}, "ranks=True, must be a whole number of at least 1"),
        ({"remainder": "keep"}, "remainder='keep'"),
        ({"dataset_len": 5}, "less than one step of 4 x 3 samples"),
    ],
)
def test_bad_arguments_are_named(arguments, says):
    with pytest.raises(ValueError, match=says):
        Leaves(**{"dataset_len": 50, "micro_batch": 3, "micro_batches": 4, **arguments})


def test_there_is_no_leaf_beyond_the_epoch():
    leaves = Leaves(50, micro_batch=3, micro_batches=4)
    for step, leaf in ((4, 0), (0, 4), (-1, 0)):
        with pytest.raises(IndexError, match=f"step {step}, leaf {leaf}"):
            leaves.indices(0, step, leaf)
