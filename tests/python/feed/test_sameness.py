"""ringdp/feed/sameness.py: what equal indices mean."""

from __future__ import annotations

import random

import pytest
from ringdp.feed.sameness import Compared, divided, same_samples

AUGMENTED = [Compared(False, True, str(i % 10)) for i in range(20)]
OTHER_DATA = [Compared(False, i % 10 == 0, str(i % 10)) for i in range(20)]


@pytest.mark.parametrize(
    ("pairs", "same"),
    [
        ([], None),
        ([Compared(True, True)], True),
        (AUGMENTED, True),
        (OTHER_DATA, False),
        ([Compared(False, True, "0")] * 9, False),  # one label says nothing
        ([Compared(False, False)] * 9, False),
        ([Compared(True, True), Compared(False, False)], True),
    ],
)
def test_bytes_decide_and_then_labels(pairs, same):
    assert same_samples(pairs) is same


@pytest.mark.parametrize(
    ("ranks", "samples", "is_divided"),
    [
        ([range(500), range(500, 1000)], 1000, True),
        ([range(500), range(499, 999)], 1000, True),  # one in a thousand twice
        ([range(500), range(400, 900)], 1000, False),  # 100 in common, where 250 would be chance
        ([range(4), range(4, 8)], 1000, False),  # too early to say
        ([range(100 * rank, 100 * rank + 100) for rank in range(8)], 1000, True),
        ([[], []], 0, False),
    ],
)
def test_shares_have_hardly_an_index_in_common(ranks, samples, is_divided):
    assert divided(ranks, samples) is is_divided


def test_unrelated_draws_are_no_shares():
    for seed in range(200):
        draw = random.Random(seed)
        assert not divided([set(draw.sample(range(1000), 150)) for _ in range(2)], 1000)
