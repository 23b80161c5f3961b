"""What is written down, in which order, what that costs, and what loaders and samplers say of themselves."""

from __future__ import annotations

import gc

import numpy as np
import pytest
import torch
from play import numbered, sharded
from ringdp.ddp import weights
from ringdp.tools.feed import recorder
from ringdp.tools.feed.recorder import HASHED_BATCHES, Recorder, is_probe
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, RandomSampler, Subset, WeightedRandomSampler
from torch.utils.data.distributed import DistributedSampler


class Endless(IterableDataset):
    def __iter__(self):
        return iter(range(10))


def test_a_distributed_sampler_below_a_loader():
    described = recorder.describe(sharded(numbered(), 1, 4, seed=5))
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
    described = recorder.describe(source)
    assert (described["sampler"], described["length"]) == (name, length)


def test_drawing_with_replacement_is_known():
    assert recorder.describe(DataLoader(numbered(), sampler=WeightedRandomSampler(torch.ones(64), 64)))["replacement"]
    assert not recorder.describe(DataLoader(numbered(), shuffle=True))["replacement"]


def test_the_sampler_s_epoch():
    loader = sharded(numbered(), 0, 2)
    loader.sampler.set_epoch(3)
    assert recorder.sampler_epoch(loader) == recorder.sampler_epoch(loader.sampler) == 3
    assert recorder.sampler_epoch(DataLoader(numbered())) is None


def test_subsets_are_seen_through():
    inner = Subset(numbered(), range(10, 30))
    outer = Subset(inner, [3, 1, 2])
    assert recorder.base_indices(outer, [0, 2]) == [13, 12]
    assert recorder.base_indices(numbered(), [0, 2]) == [0, 2]
    same = Subset(numbered(), [13, 11, 12])
    assert recorder.part_of(outer) == recorder.part_of(same) != recorder.part_of(inner)
    assert recorder.part_of(numbered()) == ""


def test_who_pads_is_known_of_torch_s_own_samplers():
    assert recorder.describe(sharded(numbered(), 0, 2, drop_last=True))["pads"] is False
    assert recorder.describe(DataLoader(numbered(), shuffle=True))["pads"] is False
    assert recorder.describe(DataLoader(numbered(), batch_sampler=[[0]]))["pads"] is None


def recorded():
    rows = []
    return Recorder(rows.append), rows


def test_an_epoch_s_records_in_order():
    recorder, rows = recorded()
    loader = sharded(numbered(), 0, 2)
    loader.sampler.set_epoch(4)
    epoch = recorder.begin(loader)
    recorder.draw(epoch, [3, 1], [torch.tensor([3.0, 1.0]), torch.tensor([3, 1])])
    recorder.backward()
    recorder.backward()
    recorder.end(epoch)
    recorder.end(epoch)
    assert [row["kind"] for row in rows] == ["loader", "epoch", "batch", "trained", "end", "cost"]
    assert rows[1] == {"kind": "epoch", "loader": 0, "epoch": 0, "sampler_epoch": 4}
    assert (rows[2]["indices"], rows[2]["size"], len(rows[2]["contents"]), len(rows[2]["labels"])) == ([3, 1], 2, 2, 2)
    assert rows[4]["batches"] == 1
    assert rows[5]["seconds"] > 0 and rows[5]["draws"] == 1


def test_only_some_batches_are_hashed_where_indices_are_known():
    recorder, rows = recorded()
    epoch = recorder.begin(DataLoader(numbered()))
    for index in range(200):
        recorder.draw(epoch, [index], torch.tensor([index]))
    hashed = ["contents" in row for row in rows if row["kind"] == "batch"]
    assert hashed == [True] * HASHED_BATCHES + [is_probe(index) for index in range(HASHED_BATCHES, 200)]
    assert 0 < sum(hashed[HASHED_BATCHES:]) < 8


def test_a_batch_s_probes_are_hashed_and_their_places_noted():
    recorder, rows = recorded()
    epoch = recorder.begin(DataLoader(numbered()))
    probe = next(index for index in range(640) if is_probe(index))
    for _ in range(HASHED_BATCHES + 1):
        recorder.draw(epoch, [probe + 1, probe], [torch.tensor([1.0, 2.0]), torch.tensor([3, 4])])
    first, *_, last = (row for row in rows if row["kind"] == "batch")
    assert (first["hashed"], last["hashed"]) == ([0, 1], [1])
    assert (last["contents"], last["labels"]) == (first["contents"][1:], first["labels"][1:])


@pytest.mark.parametrize("kind", [np.int64, torch.tensor])
def test_a_number_is_a_probe_whatever_holds_it(kind):
    assert [is_probe(kind(index)) for index in range(300)] == [is_probe(index) for index in range(300)]


@pytest.mark.parametrize("kind", [int, str, lambda index: ("part", index)])
def test_one_index_in_64_is_a_probe(kind):
    assert 70 < sum(is_probe(kind(index)) for index in range(6400)) < 130


def test_hidden_indices_are_hashed_always():
    recorder, rows = recorded()
    epoch = recorder.begin(DataLoader(numbered()))
    for index in range(HASHED_BATCHES + 2):
        recorder.draw(epoch, None, torch.tensor([index, index + 1]))
    batches = [row for row in rows if row["kind"] == "batch"]
    assert {(row["indices"], row["size"], len(row["contents"])) for row in batches} == {(None, 2, 2)}


def test_later_epochs_are_not_written_down():
    rows = []
    recorder = Recorder(rows.append, epochs=1)
    loader = DataLoader(numbered())
    for _ in range(3):
        epoch = recorder.begin(loader)
        recorder.draw(epoch, [0])
        recorder.end(epoch)
    assert [row["epoch"] for row in rows if row["kind"] in ("epoch", "batch", "end")] == [0, 0, 0]


def test_a_loader_made_for_every_epoch_is_one_loader():
    recorder, rows = recorded()
    dataset, other = numbered(), numbered()
    for _ in range(2):
        loader = DataLoader(dataset)
        recorder.end(recorder.begin(loader))
        del loader
        gc.collect()
    kept = [DataLoader(other), DataLoader(other)]  # at once: two loaders
    for loader in kept:
        recorder.end(recorder.begin(loader))
    assert [(row["loader"], row["epoch"]) for row in rows if row["kind"] == "epoch"] == [(0, 0), (0, 1), (1, 0), (2, 0)]


def looked(recorder, loader):
    """An iterator that had one batch, and was dropped."""
    epoch = recorder.begin(loader)
    recorder.draw(epoch, [0], torch.tensor([0]))
    return epoch


@pytest.mark.parametrize("then", ["a backward pass", "a second batch", "the end"])
def test_the_first_step_of_an_epoch_is_told_once_and_a_look_never(then):
    told, rows = [], []
    recorder = Recorder(rows.append, epochs=2, at_first_step=lambda: told.append(len(rows)))
    loader = DataLoader(numbered())
    for _ in range(3):
        looked(recorder, loader)
        looked(recorder, loader)
        seen = len(told)
        epoch = looked(recorder, loader)
        assert len(told) == seen
        if then == "a backward pass":
            recorder.backward()
        elif then == "a second batch":
            recorder.draw(epoch, [1])
        recorder.end(epoch)
        assert len(told) == seen + 1
    kinds = [row["kind"] for row in rows if row["kind"] in ("epoch", "batch", "end")]
    batches = 2 if then == "a second batch" else 1
    assert kinds == ["epoch", *["batch"] * batches, "end"] * 2  # looks use up nothing of what is noted
    assert {row["epoch"] for row in rows if row["kind"] == "batch"} == {0, 1}


def test_a_look_that_trains_after_all_is_the_later_epoch():
    recorder, rows = recorded()
    loader = DataLoader(numbered())
    first, second = looked(recorder, loader), looked(recorder, loader)
    recorder.end(second)
    recorder.end(first)
    assert [row["epoch"] for row in rows if row["kind"] == "batch"] == [0, 1]


def test_a_process_that_draws_nothing_writes_nothing():
    recorder, rows = recorded()
    recorder.note_cost()
    recorder.backward()
    assert rows == []


@pytest.mark.parametrize("passes", [0, 3])
def test_weighted_passes_are_known(monkeypatch, passes):
    monkeypatch.setattr(weights, "passes", passes)
    recorder, rows = recorded()
    epoch = recorder.begin(DataLoader(numbered()))
    recorder.draw(epoch, [0])
    recorder.backward()
    assert [row["weighted"] for row in rows if row["kind"] == "trained"] == [passes > 0]


def test_the_cost_is_noted_while_a_job_runs():
    recorder, rows = recorded()
    epoch = recorder.begin(DataLoader(numbered()))
    for index in range(40):
        recorder.draw(epoch, [index])
    costs = [row for row in rows if row["kind"] == "cost"]
    assert [row["draws"] for row in costs] == [8, 16, 32]
    assert 0 < costs[0]["seconds"] < costs[-1]["seconds"] <= costs[-1]["span"]
