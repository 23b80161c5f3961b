"""ringdp/feed/sameness.py: what equal indices mean."""

from __future__ import annotations

import pytest
from ringdp.feed.sameness import Compared, same_samples

AUGMENTED = [Compared(False, True, str(i % 10)) for i in range(20)]
OTHER_DATA = [Compared(False, i % 10 == 0, str(i % 10)) for i in range(20)]


@pytest.mark.parametrize(
    ("pairs", "same"),
    [
        ([], True),
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
