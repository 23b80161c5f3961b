"""ringdp/planner/feed.py: limits of the shares, and a batch larger than the data."""

import pytest
from ringdp.planner.feed import feed
from ringdp.planner.kind import InputError


def test_one_rank_sees_everything():
    answer = feed(1, 100, 10)
    assert [figure.value for figure in answer.figures] == pytest.approx([1, 1, 1])


def test_whole_batches_are_one_another_s_copies():
    assert feed(8, 64, 64)["independent_distinct_share_per_step"] == feed(8, 64, 64)["same_seed_distinct_share"]


def test_more_than_all_samples_is_refused():
    with pytest.raises(InputError, match="--batch-per-rank 65 is more than all --samples 64"):
        feed(8, 64, 65)
