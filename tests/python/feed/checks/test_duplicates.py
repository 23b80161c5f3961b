"""ringdp/feed/checks/duplicates.py: the plain DataLoader of every tutorial, and one sample in a thousand."""

from __future__ import annotations

import random

import pytest
import torch
from play import checks, epochs_of, fixed, judged, numbered, sharded, shuffled
from ringdp.attach.finding import problems
from torch.utils.data import DataLoader, IterableDataset, TensorDataset, WeightedRandomSampler

DATA = numbered(4096)


def duplicates(report):
    (finding,) = [finding for finding in report.findings if finding.check == "duplicates"]
    return finding


def test_the_same_seed_on_8_ranks_is_found_at_step_1():
    finding = duplicates(judged(lambda rank: epochs_of(shuffled(DATA, 0, 64), steps=1), 8))
    assert finding.numbers["step_1_distinct_share"] == 1 / 8
    assert "at step 1 64 of 512 samples are distinct (12.5%)" in finding.seen
    assert "All ranks draw the same samples in the same order" in finding.seen
    assert "DistributedSampler(dataset)" in finding.fix


def test_independent_shuffles_are_found_at_step_1():
    shares = []
    for first in range(0, 80, 8):
        found = duplicates(judged(lambda rank, first=first: epochs_of(shuffled(DATA, first + rank, 64), steps=1), 8))
        assert "shuffles the whole data set by itself" in found.seen
        shares.append(found.numbers["step_1_distinct_share"])
    expected = (1 - (1 - 64 / 4096) ** 8) * 4096 / 512  # each sample is drawn by a rank with probability 64/4096
    assert sum(shares) / len(shares) == pytest.approx(expected, abs=0.01)
    assert expected == pytest.approx(0.947, abs=0.001)


def test_in_a_rank_s_share_of_steps_they_see_two_thirds_of_the_data():
    report = judged(lambda rank: epochs_of(shuffled(DATA, rank, 64), steps=8), 8)
    row = report.rows[0]
    assert row.drawn == 4096
    assert row.distinct / 4096 == pytest.approx(1 - (1 - 1 / 8) ** 8, abs=0.02)  # 65.6 %
    assert f"{row.distinct / 4096:.1%} of the data set's 4096" in duplicates(report).seen


@pytest.mark.parametrize("seed", range(3))
def test_one_planted_duplicate_in_a_thousand(seed):
    draw = random.Random(seed)
    order = draw.sample(range(1000), 1000)
    order[draw.randrange(500, 990)] = order[draw.randrange(500)]
    parts = [[order[start : start + 50] for start in range(first, first + 500, 50)] for first in (0, 500)]
    report = judged(lambda rank: epochs_of(fixed(numbered(1000), parts[rank])), 2)
    assert checks(report) == ["duplicates", "missing"]
    assert duplicates(report).numbers["repeated"] == 1
    assert duplicates(report).ranks == (0, 1)


def test_padding_is_a_note():
    report = judged(lambda rank: epochs_of(sharded(numbered(62), rank, 4)), 4)
    assert checks(report) == ["padding"]
    assert problems(report.findings) == []


def test_drawing_with_replacement_is_not_judged():
    def draw(rank):
        epochs_of(DataLoader(DATA, 64, sampler=WeightedRandomSampler(torch.ones(4096), 1024)))

    report = judged(draw, 4)
    assert report.findings == ()
    assert any("replacement" in sentence for sentence in report.not_judged)


def test_random_augmentation_does_not_hide_them():
    labels = torch.arange(64) % 10

    def draw(rank):
        noisy = TensorDataset(torch.randn(64, 3), labels)
        epochs_of(DataLoader(noisy, 8))

    assert "duplicates" in checks(judged(draw, 2))


def test_ranks_with_data_of_their_own_are_fine():
    generator = torch.Generator().manual_seed(0)
    own = [TensorDataset(torch.randn(64, 3), torch.randint(10, (64,), generator=generator)) for _ in range(2)]
    assert judged(lambda rank: epochs_of(DataLoader(own[rank], 8), 2), 2).findings == ()


class Stream(IterableDataset):
    def __init__(self, samples):
        self.samples = samples

    def __iter__(self):
        return iter(self.samples)


@pytest.mark.parametrize(("shared", "found"), [(0, []), (1, ["duplicates"]), (40, ["duplicates"])])
def test_streams_are_compared_by_content(shared, found):
    samples = torch.randn(80, 5, generator=torch.Generator().manual_seed(0))
    parts = [samples[:40], torch.cat([samples[:shared], samples[40 + shared :]])]
    report = judged(lambda rank: epochs_of(DataLoader(Stream(parts[rank]), 8)), 2)
    assert checks(report) == found
    assert report.rows[0].repeated == shared
    assert report.rows[0].by == "content"


@pytest.mark.parametrize(
    ("options", "cause"),
    [
        (lambda rank: {"seed": rank}, "different seeds (rank 0: 0, rank 1: 1)"),
        (lambda rank: {"rank": 0}, "given the same rank"),
        (lambda rank: {"epoch": rank}, "different epochs (rank 0: 0, rank 1: 1)"),
    ],
)
def test_the_cause_is_named(options, cause):
    def draw(rank):
        given = options(rank)
        loader = sharded(numbered(64), given.get("rank", rank), 2, seed=given.get("seed", 0))
        loader.sampler.set_epoch(given.get("epoch", 0))
        epochs_of(loader, told=False)

    assert cause in duplicates(judged(draw, 2)).seen


def test_a_sampler_that_repeats_itself():
    report = judged(lambda rank: epochs_of(fixed(numbered(8), [[4 * rank, 4 * rank + 1], [4 * rank, 4 * rank + 2]])), 2)
    assert "gives a rank the same sample again" in duplicates(report).seen
