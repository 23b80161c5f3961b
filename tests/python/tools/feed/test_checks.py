"""The checks of an audit: the plain DataLoader of every tutorial, one sample in a thousand, and what is meant."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch
from play import checks, epochs_of, feed_of, fixed, judged, numbered, only, ranks_of, sharded, shuffled
from ringdp.tools.attach.finding import problems
from ringdp.tools.feed.checks import check_uneven
from torch.utils.data import DataLoader, IterableDataset, Subset, TensorDataset, WeightedRandomSampler

DATA = numbered(64)


@pytest.mark.parametrize(
    ("place_of", "ranks", "seen"),
    [
        (lambda rank: (0, 4), (0, 1, 2, 3), "rank 1 has rank=0"),
        (lambda rank: (max(rank, 1), 4), (0, 1), "rank 1 has rank=1"),
        (lambda rank: (rank % 2, 2), (0, 1, 2, 3), "for 2 ranks in a job of 4"),
    ],
)
def test_samplers_that_do_not_share_out_among_the_ranks_of_the_job(place_of, ranks, seen):
    finding = only(judged(lambda rank: epochs_of(sharded(DATA, *place_of(rank)), steps=1), 4), "wrong rank")
    assert finding.ranks == ranks and seen in finding.seen


DUPLICATES_DATA = numbered(4096)


def duplicates(report):
    return only(report, "duplicates")


def test_the_same_seed_on_8_ranks_is_found_at_step_1():
    finding = duplicates(judged(lambda rank: epochs_of(shuffled(DUPLICATES_DATA, 0, 64), steps=1), 8))
    assert finding.numbers["step_1_distinct_share"] == 1 / 8
    assert "at step 1 64 of 512 samples are distinct (12.5%)" in finding.seen
    assert "All ranks draw the same samples in the same order" in finding.seen
    assert "DistributedSampler(dataset)" in finding.fix


def test_independent_shuffles_are_found_at_step_1():
    shares = []
    for first in range(0, 80, 8):
        found = duplicates(
            judged(lambda rank, first=first: epochs_of(shuffled(DUPLICATES_DATA, first + rank, 64), steps=1), 8)
        )
        assert "shuffles the whole data set by itself" in found.seen
        shares.append(found.numbers["step_1_distinct_share"])
    expected = (1 - (1 - 64 / 4096) ** 8) * 4096 / 512  # each sample is drawn by a rank with probability 64/4096
    assert sum(shares) / len(shares) == pytest.approx(expected, abs=0.01)
    assert expected == pytest.approx(0.947, abs=0.001)


def test_in_a_rank_s_share_of_steps_they_see_two_thirds_of_the_data():
    report = judged(lambda rank: epochs_of(shuffled(DUPLICATES_DATA, rank, 64), steps=8), 8)
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


SUBSETS = [Subset(numbered(30), range(rank, 30, 2)) for rank in range(2)]


def warmed_up(rank):
    loader = sharded(DATA, rank, 4)
    epochs_of(loader, steps=1)
    epochs_of(loader, 2)


@pytest.mark.parametrize(
    ("draw", "world", "notes"),
    [
        pytest.param(lambda rank: epochs_of(sharded(DATA, 3 - rank, 4)), 4, [], id="ranks in another order"),
        pytest.param(lambda rank: epochs_of(sharded(DATA, rank, 4), 3), 4, [], id="told epochs"),
        pytest.param(warmed_up, 4, [], id="a step to warm up"),
        pytest.param(lambda rank: epochs_of(DataLoader(SUBSETS[rank], 5)), 2, [], id="subsets make up the whole"),
        pytest.param(lambda rank: epochs_of(sharded(DATA, rank, 2, 4), steps=3), 2, [], id="all leave early"),
        pytest.param(lambda rank: epochs_of(sharded(DATA, rank, 2, 7)), 2, [], id="a smaller last batch on all"),
        pytest.param(lambda rank: epochs_of(sharded(numbered(62), rank, 4)), 4, ["padding"], id="padding"),
        pytest.param(
            lambda rank: epochs_of(sharded(numbered(65), rank, 2, drop_last=True)), 2, ["dropped"], id="dropping"
        ),
    ],
)
def test_what_is_fine_is_a_note_at_most(draw, world, notes):
    report = judged(draw, world)
    assert checks(report) == notes and problems(report.findings) == []


def test_drawing_with_replacement_is_not_judged():
    def draw(rank):
        epochs_of(DataLoader(DUPLICATES_DATA, 64, sampler=WeightedRandomSampler(torch.ones(4096), 1024)))

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


def test_a_share_that_is_never_drawn():
    data = numbered(60)
    report = judged(lambda rank: epochs_of(sharded(data, rank, 3)), 2)
    finding = only(report, "missing")
    assert finding.numbers == {"epoch": 1, "missing": 20, "samples": 60, "seen_share": 2 / 3}
    assert "20 of 60 samples (33.3%) were drawn by no rank" in finding.seen


def test_an_epoch_that_was_left_early_is_not_judged():
    report = judged(lambda rank: epochs_of(sharded(numbered(64), rank, 2), 2, steps=2), 2)
    assert report.findings == ()
    assert [row.missing for row in report.rows] == [None, None]


def test_the_first_epoch_with_a_gap_is_named_once():
    halves = [[list(range(40))], [[*range(40, 79), 78]]]
    report = judged(lambda rank: epochs_of(fixed(numbered(80), halves[rank]), 3), 2)
    finding = only(report, "missing")
    assert finding.numbers["epoch"] == 1 and finding.numbers["missing"] == 1


STALE_DATA = numbered(256)


def test_a_forgotten_set_epoch_is_found_at_the_second_epoch_s_first_step():
    def draw(rank):
        loader = sharded(STALE_DATA, rank, 4, 1)
        epochs_of(loader, told=False)
        epochs_of(loader, steps=1, told=False)

    (finding,) = judged(draw, 4).findings
    assert (finding.check, finding.numbers, finding.ranks) == ("stale epoch", {"epoch": 2}, (0, 1, 2, 3))
    assert "still at epoch 0" in finding.seen and "set_epoch(epoch)" in finding.fix


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
        loader = sharded(STALE_DATA, rank, 4)
        for epoch in range(3):
            look(loader)
            if epoch < 2 or not last:
                loader.sampler.set_epoch(epoch)
                epochs_of(loader, told=False)

    assert "stale epoch" not in checks(judged(draw, 4))


def test_epochs_that_are_left_early_are_compared():
    def draw(rank):
        epochs_of(sharded(STALE_DATA, rank, 4, 1), 2, steps=5, told=False)

    assert checks(judged(draw, 4)) == ["stale epoch"]


@pytest.mark.parametrize("plain", [False, True])
def test_data_that_is_not_shuffled_is_not_stale(plain):
    def draw(rank):
        loader = DataLoader(STALE_DATA, 8) if plain else sharded(STALE_DATA, rank, 4, shuffle=False)
        epochs_of(loader, 2, told=False)

    assert "stale epoch" not in checks(judged(draw, 4))


def test_a_generator_that_is_seeded_anew_each_epoch():
    def draw(rank):
        loader = shuffled(STALE_DATA, 0)
        for _ in range(2):
            loader.sampler.generator = torch.Generator().manual_seed(7)
            epochs_of(loader)

    assert "seed the shuffle's generator once" in only(judged(draw, 2), "stale epoch").fix


def test_one_rank_that_forgets_it_is_named():
    report = judged(lambda rank: epochs_of(sharded(STALE_DATA, rank, 4), 2, told=rank != 2), 4)
    assert only(report, "stale epoch").ranks == (2,)


UNEVEN_DATA = numbered(40)


def found_of_uneven(parts, check):
    """The one finding of this name where rank r draws parts[r]."""
    return only(judged(lambda rank: epochs_of(fixed(UNEVEN_DATA, parts[rank])), len(parts)), check)


def test_unequal_numbers_of_batches():
    parts = [[[0, 1], [2, 3], [4, 5]], [[6, 7], [8, 9]]]
    finding = found_of_uneven(parts, "uneven steps")
    assert (finding.ranks, finding.numbers) == ((1,), {"epoch": 1, "fewest": 2, "most": 3})
    assert "join()" in finding.fix


def test_a_rank_that_is_still_drawing_counts_with_what_it_has():
    def draw(rank):
        epochs_of(
            fixed(UNEVEN_DATA, [[2 * step + 20 * rank, 2 * step + 1 + 20 * rank] for step in range(4 + rank)]), steps=5
        )

    assert "uneven steps" in checks(judged(draw, 2))


@pytest.mark.parametrize("sizes", [(2, 3), (3, 2)])
def test_unequal_batches_in_one_step(sizes):
    places = ((0, sizes[0]), (20, sizes[1]))
    parts = [[[first, first + 1, first + 2], list(range(first + 5, first + 5 + size))] for first, size in places]
    finding = found_of_uneven(parts, "uneven sizes")
    assert finding.numbers == {"epoch": 1, "step": 2, "least": 2, "most": 3}
    assert finding.ranks == (sizes.index(2),)


def test_weighted_means_may_be_of_unequal_batches():
    parts = [[[0, 1, 2], [3]], [[4, 5]]]
    feed = feed_of(ranks_of(lambda rank: epochs_of(fixed(UNEVEN_DATA, parts[rank])), 2))
    assert len(list(check_uneven(feed))) == 2
    assert list(check_uneven(replace(feed, weighted=True))) == []
