"""The feed: ranks share out an epoch, epochs are shuffled anew, and any step can be the first."""

from __future__ import annotations

from itertools import islice

import pytest
import torch
from ringdp.examples.corpus import Windows
from ringdp.examples.feed import Feed

LENGTH = 4
WINDOWS = Windows(torch.arange(4 * 24 + 1, dtype=torch.uint8), LENGTH, "training")


def firsts(feed: Feed, start: int, steps: int) -> list[int]:
    """The first byte of every sequence of some steps: it tells which window it is."""
    return [int(w[0]) for batch in islice(feed.starting_at(start), steps) for w in batch]


def test_the_ranks_share_out_an_epoch():
    feeds = [Feed(WINDOWS, 2, rank, 3, seed=5) for rank in range(3)]
    seen = [w for feed in feeds for w in firsts(feed, 0, feed.steps_per_epoch)]
    assert sorted(seen) == [LENGTH * i for i in range(24)]


def test_epochs_are_in_different_orders_of_the_same_windows():
    feed = Feed(WINDOWS, 2, 0, 1, seed=5)
    steps = feed.steps_per_epoch
    first, second = firsts(feed, 0, steps), firsts(feed, steps, steps)
    assert first != second
    assert sorted(first) == sorted(second)


@pytest.mark.parametrize("start", [0, 1, 11, 12, 13, 30])
def test_starting_late_is_the_same_as_having_run(start):
    feed = Feed(WINDOWS, 2, 0, 1, seed=5)
    assert firsts(feed, start, 5) == firsts(feed, 0, start + 5)[2 * start :]


def test_the_global_rng_is_not_touched():
    state = torch.get_rng_state()
    firsts(Feed(WINDOWS, 2, 0, 1, seed=5), 0, 30)
    assert torch.equal(torch.get_rng_state(), state)


def test_less_than_a_batch_for_every_rank_is_refused():
    with pytest.raises(ValueError, match="24 training sequences are not one batch of 7 for each of 4 ranks"):
        Feed(WINDOWS, 7, 0, 4, seed=5)
