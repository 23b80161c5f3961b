"""Every way of drawing is seen, nothing is drawn otherwise, and torch is left as it was."""

from __future__ import annotations

import ast
import time

import pytest
import torch
from play import numbered, played
from ringdp.tools.feed.hooks import AuditError, Watcher, unwatch, watch
from ringdp.tools.feed.recorder import Recorder
from torch.utils.data import DataLoader, IterableDataset, RandomSampler
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
    watch(watcher, DistributedSampler)
    try:
        assert len(list(DataLoader(numbered(10), sampler=sampler, **options))) in (3, 5)
    finally:
        unwatch(watcher)
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
    watchers = [
        Watcher(Recorder(own.append), lambda source, loader=loader: source is loader)
        for own, loader in zip(rows, loaders, strict=True)
    ]
    for watcher in watchers:
        watch(watcher)
    for loader in loaders:
        list(loader)
    for watcher in watchers:
        unwatch(watcher)
    assert [sum(row["kind"] == "batch" for row in own) for own in rows] == [2, 3]


def test_a_failing_recorder_does_not_stop_the_training(recwarn):
    def fail(row):
        raise ValueError("no room")

    watcher = Watcher(Recorder(fail), lambda source: True)
    watch(watcher)
    try:
        assert len(list(DataLoader(numbered(4)))) == 4
    finally:
        unwatch(watcher)
    assert ["no room" in str(w.message) for w in recwarn] == [True]


def test_an_audit_error_goes_through():
    def fail(row):
        raise AuditError("duplicates")

    watcher = Watcher(Recorder(fail), lambda source: True)
    watch(watcher)
    try:
        with pytest.raises(AuditError, match="duplicates"):
            list(DataLoader(numbered(4)))
    finally:
        unwatch(watcher)


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
