"""ringdp/feed/checks/uneven.py: unequal numbers of batches, unequal batches."""

from __future__ import annotations

from dataclasses import replace

import pytest
from play import checks, epochs_of, fixed, judged, numbered, played, sharded
from ringdp.feed.checks.uneven import check
from ringdp.feed.draws import feeds_of
from ringdp.feed.exchange import records_of

DATA = numbered(40)


def found(parts, check):
    """The one finding of this name where rank r draws parts[r]."""
    report = judged(lambda rank: epochs_of(fixed(DATA, parts[rank])), len(parts))
    (finding,) = [finding for finding in report.findings if finding.check == check]
    return finding


def test_unequal_numbers_of_batches():
    parts = [[[0, 1], [2, 3], [4, 5]], [[6, 7], [8, 9]]]
    finding = found(parts, "uneven steps")
    assert (finding.ranks, finding.numbers) == ((1,), {"epoch": 1, "fewest": 2, "most": 3})
    assert "join()" in finding.fix


def test_a_rank_that_is_still_drawing_counts_with_what_it_has():
    def draw(rank):
        epochs_of(fixed(DATA, [[2 * step + 20 * rank, 2 * step + 1 + 20 * rank] for step in range(4 + rank)]), steps=5)

    assert "uneven steps" in checks(judged(draw, 2))


def test_leaving_early_alike_is_fine():
    assert checks(judged(lambda rank: epochs_of(sharded(DATA, rank, 2, 4), steps=3), 2)) == []


@pytest.mark.parametrize("sizes", [(2, 3), (3, 2)])
def test_unequal_batches_in_one_step(sizes):
    places = ((0, sizes[0]), (20, sizes[1]))
    parts = [[[first, first + 1, first + 2], list(range(first + 5, first + 5 + size))] for first, size in places]
    finding = found(parts, "uneven sizes")
    assert finding.numbers == {"epoch": 1, "step": 2, "least": 2, "most": 3}
    assert finding.ranks == (sizes.index(2),)


def test_a_smaller_last_batch_on_all_ranks_is_fine():
    assert checks(judged(lambda rank: epochs_of(sharded(DATA, rank, 2, 7)), 2)) == []


def test_weighted_means_may_be_of_unequal_batches():
    parts = [[[0, 1, 2], [3]], [[4, 5]]]
    rows = played(lambda rank: epochs_of(fixed(DATA, parts[rank])), 2)
    (feed,) = feeds_of({rank: records_of(rank, 2, rows[rank]) for rank in rows}, only_training=False)
    assert len(list(check(feed))) == 2
    assert list(check(replace(feed, weighted=True))) == []
