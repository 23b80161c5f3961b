"""Every way of drawing is seen, nothing is drawn otherwise, and what is written down."""

from __future__ import annotations

import ast
import gc
import time

import numpy as np
import pytest
import torch
from play import numbered, played, sharded, watching
from ringdp.ddp import weights
from ringdp.elastic import Leaves
from ringdp.tools.feed import recorder
from ringdp.tools.feed.hooks import AuditError, Watcher, unwatch, watch
from ringdp.tools.feed.recorder import HASHED_BATCHES, Recorder, is_probe
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, RandomSampler, Subset, WeightedRandomSampler
from torch.utils.data.dataloader import _BaseDataLoaderIter
from torch.utils.data.distributed import DistributedSampler

HOOKED = [(DataLoader, "__iter__"), (_BaseDataLoaderIter, "_next_index"), (_BaseDataLoaderIter, "__next__")]


class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(10))


def drawn(draw):
    """The batches that were written down while `draw` ran, and what it returned."""
    result = []
    rows = played(lambda rank: result.append(draw()), 1)[0]
    return [row["indices"] for row in rows if row["kind"] == "batch"], rows, result[0]


@pytest.mark.parametrize(("workers", "persistent"), [(0, False), (2, False), (2, True)])
def test_indices_in_the_order_in_which_batches_are_handed_out(workers, persistent):
    def draw():
        options = {"num_workers": workers, "persistent_workers": persistent, "shuffle": True, "batch_size": 4}
        loader = DataLoader(numbered(10), generator=torch.Generator().manual_seed(1), **options)
        return [[batch[0].int().tolist() for batch in loader] for _ in range(2)]

    indices, rows, epochs = drawn(draw)
    assert indices == [batch for epoch in epochs for batch in epoch]
    assert [row["batches"] for row in rows if row["kind"] == "end"] == [3, 3]


def test_an_epoch_left_early_has_what_was_handed_out():
    def draw():
        loader = DataLoader(numbered(40), batch_size=4, num_workers=1, prefetch_factor=4)
        for step, _ in enumerate(loader):
            if step == 1:
                return

    indices, rows, _ = drawn(draw)
    assert indices == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert "end" not in {row["kind"] for row in rows}


def test_streams_have_no_indices():
    indices, rows, _ = drawn(lambda: list(DataLoader(Stream(), batch_size=4)))
    assert indices == [None] * 3
    assert [row["size"] for row in rows if row["kind"] == "batch"] == [4, 4, 2]


def test_samplers_outside_of_loaders_are_seen_and_inside_are_not():
    sampler = DistributedSampler(numbered(10), num_replicas=2, rank=1, shuffle=False)
    indices, rows, listed = drawn(lambda: list(sampler))
    assert (indices, listed) == ([[1], [3], [5], [7], [9]], [1, 3, 5, 7, 9])
    _, rows, _ = drawn(lambda: list(DataLoader(numbered(10), sampler=sampler)))
    assert [row["sampler"] for row in rows if row["kind"] == "loader"] == ["DistributedSampler"]


@pytest.mark.parametrize("options", [{"batch_size": None}, {"batch_size": 2}, {"batch_size": 2, "num_workers": 1}])
@pytest.mark.parametrize("loader_is_watched", [False, True])
def test_a_sampler_in_a_loader_is_seen_by_those_who_do_not_see_the_loader(options, loader_is_watched):
    rows = []
    sampler = DistributedSampler(numbered(10), num_replicas=2, rank=1, shuffle=False)
    watcher = Watcher(Recorder(rows.append), lambda source: source is sampler or loader_is_watched)
    with watching(watcher, DistributedSampler):
        assert len(list(DataLoader(numbered(10), sampler=sampler, **options))) in (3, 5)
    indices = [index for row in rows if row["kind"] == "batch" for index in row["indices"]]
    assert indices == [1, 3, 5, 7, 9]
    assert sum(row["kind"] == "loader" for row in rows) == 1


def test_a_loader_inside_of_a_loader_s_sampler_is_seen():
    class Nested:
        def __iter__(self):
            return (int(x) for x, _ in DataLoader(numbered(4), batch_size=1))

    indices, _, _ = drawn(lambda: list(DataLoader(numbered(4), batch_size=4, sampler=Nested())))
    assert indices == [[0], [1], [2], [3], [0, 1, 2, 3]]


class Dawdling(torch.utils.data.Dataset):
    """The first sample comes last."""

    def __len__(self):
        return 8

    def __getitem__(self, index):
        time.sleep(0.5 * (index == 0))
        return torch.tensor(index)


@pytest.mark.parametrize(("workers", "hidden"), [(0, False), (2, True)])
def test_batches_out_of_order_have_no_indices(workers, hidden):
    loader = DataLoader(Dawdling(), num_workers=workers, in_order=False)
    indices, rows, _ = drawn(lambda: list(loader))
    assert indices == ([None] * 8 if hidden else [[index] for index in range(8)])
    assert all(row["contents"] for row in rows if row["kind"] == "batch")


def test_a_backward_pass_marks_the_loader_drawn_from_last():
    def draw():
        weight = torch.ones(1, requires_grad=True)
        list(DataLoader(numbered(4)))
        for x, _ in DataLoader(numbered(4), batch_size=2):
            (weight * x).sum().backward()

    _, rows, _ = drawn(draw)
    assert [row["loader"] for row in rows if row["kind"] == "trained"] == [1]


def test_torch_is_left_as_it_was():
    before = [getattr(owner, name) for owner, name in HOOKED] + [torch.autograd.backward, RandomSampler.__iter__]
    watchers = [Watcher(Recorder(lambda row: None), lambda source: True) for _ in range(2)]
    for watcher in watchers:
        watch(watcher, RandomSampler)
    for watcher in watchers:
        assert DataLoader.__iter__ is not before[0]
        unwatch(watcher)
    unwatch(watchers[0])
    after = [getattr(owner, name) for owner, name in HOOKED] + [torch.autograd.backward, RandomSampler.__iter__]
    assert after == before


def test_two_watchers_each_have_their_own_loader():
    loaders = [DataLoader(numbered(2)), DataLoader(numbered(3))]
    rows = [[], []]
    first, second = (
        watching(Watcher(Recorder(own.append), lambda source, loader=loader: source is loader))
        for own, loader in zip(rows, loaders, strict=True)
    )
    with first, second:
        for loader in loaders:
            list(loader)
    assert [sum(row["kind"] == "batch" for row in own) for own in rows] == [2, 3]


def test_a_failing_recorder_does_not_stop_the_training(recwarn):
    def fail(row):
        raise ValueError("no room")

    with watching(Watcher(Recorder(fail), lambda source: True)):
        assert len(list(DataLoader(numbered(4)))) == 4
    assert ["no room" in str(w.message) for w in recwarn] == [True]


def test_an_audit_error_goes_through():
    def fail(row):
        raise AuditError("duplicates")

    with watching(Watcher(Recorder(fail), lambda source: True)), pytest.raises(AuditError, match="duplicates"):
        list(DataLoader(numbered(4)))


CODE = """
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler
from ringdp.tools.feed.hooks import attach
rows = []
attach(rows.append, {"epochs": 2})
loader = DataLoader(list(range(6)), batch_size=3)
for _ in range(4):
    list(loader)
list(DistributedSampler(list(range(6)), num_replicas=2, rank=0))
print([(row["loader"], row["epoch"]) for row in rows if row["kind"] == "epoch"])
rows.clear()
import atexit
atexit._run_exitfuncs()
print([row["kind"] for row in rows])
"""


def test_loaders_and_distributed_samplers_are_written_down(run_warm):
    result = run_warm(CODE)
    epochs, at_exit = map(ast.literal_eval, result.stdout.splitlines())
    assert epochs == [(0, 0), (0, 1), (1, 0)], result.stderr
    assert at_exit == ["cost"]


# What is written down, in which order, what that costs, and what loaders and samplers say of themselves.


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
        "leaves": None,
    }


def test_micro_batches_below_a_loader():
    leaves = Leaves(64, micro_batch=3, micro_batches=5, seed=7, rank=1, ranks=2)
    described = recorder.describe(DataLoader(numbered(), batch_sampler=leaves))
    settings = {"dataset_len": 64, "micro_batch": 3, "micro_batches": 5, "seed": 7, "remainder": "drop"}
    assert described["leaves"] == {**settings, "mine": leaves.mine()} and described["sampler"] == "Leaves"


@pytest.mark.parametrize(
    ("source", "said"),
    [
        (DataLoader(numbered()), {"sampler": "SequentialSampler", "length": 64}),
        (
            DataLoader(numbered(), shuffle=True),
            {"sampler": "RandomSampler", "length": 64, "replacement": False, "pads": False},
        ),
        (DataLoader(numbered(), batch_sampler=[[0, 1], [2]]), {"sampler": "fixed batches", "length": 64, "pads": None}),
        (DataLoader(numbered(), batch_size=None), {"sampler": "SequentialSampler", "length": 64}),
        (DataLoader(Stream()), {"sampler": "_InfiniteConstantSampler", "length": None}),
        (DataLoader(numbered(), sampler=WeightedRandomSampler(torch.ones(64), 64)), {"replacement": True}),
        (DistributedSampler(numbered(), num_replicas=2, rank=0), {"sampler": "DistributedSampler", "length": 64}),
        (sharded(numbered(), 0, 2, drop_last=True), {"pads": False}),
        (BatchSampler(RandomSampler(range(9)), 4, False), {"sampler": "RandomSampler", "length": 9}),
    ],
)
def test_other_sources(source, said):
    described = recorder.describe(source)
    assert {name: described[name] for name in said} == said


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
