"""ringdp/feed/facts.py: what loaders and samplers say of themselves."""

from __future__ import annotations

import pytest
import torch
from play import numbered, sharded
from ringdp.feed import facts
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, RandomSampler, Subset, WeightedRandomSampler
from torch.utils.data.distributed import DistributedSampler


class Endless(IterableDataset):
    def __iter__(self):
        return iter(range(10))


def test_a_distributed_sampler_below_a_loader():
    described = facts.describe(sharded(numbered(), 1, 4, seed=5))
    assert described == {
        "dataset": "TensorDataset",
        "length": 64,
        "part": "",
        "hidden": False,
        "sampler": "DistributedSampler",
        "batch_size": 8,
        "drop_last": False,
        "replacement": False,
        "replicas": 4,
        "sampler_rank": 1,
        "seed": 5,
        "shuffle": True,
        "pads": True,
    }


@pytest.mark.parametrize(
    ("source", "name", "length"),
    [
        (DataLoader(numbered()), "SequentialSampler", 64),
        (DataLoader(numbered(), shuffle=True), "RandomSampler", 64),
        (DataLoader(numbered(), batch_sampler=[[0, 1], [2]]), "fixed batches", 64),
        (DataLoader(numbered(), batch_size=None), "SequentialSampler", 64),
        (DataLoader(Endless()), "_InfiniteConstantSampler", None),
        (DistributedSampler(numbered(), num_replicas=2, rank=0), "DistributedSampler", 64),
        (BatchSampler(RandomSampler(range(9)), 4, False), "RandomSampler", 9),
    ],
)
def test_other_sources(source, name, length):
    described = facts.describe(source)
    assert (described["sampler"], described["length"]) == (name, length)


def test_drawing_with_replacement_is_known():
    assert facts.describe(DataLoader(numbered(), sampler=WeightedRandomSampler(torch.ones(64), 64)))["replacement"]
    assert not facts.describe(DataLoader(numbered(), shuffle=True))["replacement"]


def test_the_sampler_s_epoch():
    loader = sharded(numbered(), 0, 2)
    loader.sampler.set_epoch(3)
    assert facts.sampler_epoch(loader) == facts.sampler_epoch(loader.sampler) == 3
    assert facts.sampler_epoch(DataLoader(numbered())) is None


def test_subsets_are_seen_through():
    inner = Subset(numbered(), range(10, 30))
    outer = Subset(inner, [3, 1, 2])
    assert facts.base_indices(outer, [0, 2]) == [13, 12]
    assert facts.base_indices(numbered(), [0, 2]) == [0, 2]
    same = Subset(numbered(), [13, 11, 12])
    assert facts.part_of(outer) == facts.part_of(same) != facts.part_of(inner)
    assert facts.part_of(numbered()) == ""


def test_who_pads_is_known_of_torch_s_own_samplers():
    assert facts.describe(sharded(numbered(), 0, 2, drop_last=True))["pads"] is False
    assert facts.describe(DataLoader(numbered(), shuffle=True))["pads"] is False
    assert facts.describe(DataLoader(numbered(), batch_sampler=[[0]]))["pads"] is None
