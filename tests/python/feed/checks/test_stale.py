"""ringdp/feed/checks/stale.py: the forgotten set_epoch()."""

from __future__ import annotations

import pytest
import torch
from play import checks, epochs_of, judged, numbered, sharded, shuffled
from torch.utils.data import DataLoader

DATA = numbered(256)


def test_a_forgotten_set_epoch_is_found_at_the_second_epoch_s_first_step():
    def draw(rank):
        loader = sharded(DATA, rank, 4, 1)
        epochs_of(loader, told=False)
        epochs_of(loader, steps=1, told=False)

    (finding,) = judged(draw, 4).findings
    assert (finding.check, finding.numbers, finding.ranks) == ("stale epoch", {"epoch": 2}, (0, 1, 2, 3))
    assert "still at epoch 0" in finding.seen and "set_epoch(epoch)" in finding.fix


def test_told_epochs_are_fine():
    assert checks(judged(lambda rank: epochs_of(sharded(DATA, rank, 4), 3), 4)) == []


def peek(loader):
    """As PyTorch's own tutorial does before each epoch."""
    next(iter(loader))


def statistics(loader):
    epochs_of(loader, steps=3, told=False, trained=False)


@pytest.mark.parametrize("look", [peek, statistics])
@pytest.mark.parametrize("last", [True, False])
def test_a_look_before_set_epoch_is_not_stale(look, last):
    """Whether the job has ended with it, or with the epoch behind it."""

    def draw(rank):
        loader = sharded(DATA, rank, 4)
        for epoch in range(3):
            look(loader)
            if epoch < 2 or not last:
                loader.sampler.set_epoch(epoch)
                epochs_of(loader, told=False)

    assert "stale epoch" not in checks(judged(draw, 4))


def test_a_step_to_warm_up_is_no_epoch_before():
    def draw(rank):
        loader = sharded(DATA, rank, 4)
        epochs_of(loader, steps=1)
        epochs_of(loader, 2)

    assert checks(judged(draw, 4)) == []


def test_epochs_that_are_left_early_are_compared():
    def draw(rank):
        epochs_of(sharded(DATA, rank, 4, 1), 2, steps=5, told=False)

    assert checks(judged(draw, 4)) == ["stale epoch"]


@pytest.mark.parametrize("plain", [False, True])
def test_data_that_is_not_shuffled_is_not_stale(plain):
    def draw(rank):
        loader = DataLoader(DATA, 8) if plain else sharded(DATA, rank, 4, shuffle=False)
        epochs_of(loader, 2, told=False)

    assert "stale epoch" not in checks(judged(draw, 4))


def test_a_generator_that_is_seeded_anew_each_epoch():
    def draw(rank):
        loader = shuffled(DATA, 0)
        for _ in range(2):
            loader.sampler.generator = torch.Generator().manual_seed(7)
            epochs_of(loader)

    (finding,) = [f for f in judged(draw, 2).findings if f.check == "stale epoch"]
    assert "seed the shuffle's generator once" in finding.fix


def test_one_rank_that_forgets_it_is_named():
    report = judged(lambda rank: epochs_of(sharded(DATA, rank, 4), 2, told=rank != 2), 4)
    (finding,) = [f for f in report.findings if f.check == "stale epoch"]
    assert finding.ranks == (2,)
