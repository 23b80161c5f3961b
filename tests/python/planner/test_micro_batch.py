"""ringdp/planner/micro_batch.py: against counting up."""

import pytest
from ringdp.planner.micro_batch import largest


@pytest.mark.parametrize("room", [*range(0, 40), 1000, 12345])
def test_the_largest_by_counting_up(room):
    def needed(samples):
        return 7 + 3 * samples

    expected = max((n for n in range(1, 5000) if needed(n) <= room), default=0)
    found = largest(needed, room, most=1 << 20)
    assert found.samples == expected and found.too_large == expected + 1
    assert found.needed == (needed(expected) if expected else 0)
    assert len(found.tried) <= 2 * (expected + 1).bit_length() + 1


@pytest.mark.parametrize("most", [1, 3, 64, 100])
def test_it_ends_where_everything_fits(most):
    found = largest(lambda samples: 0, 1, most)
    assert (found.samples, found.too_large) == (most, None)


@pytest.mark.parametrize("room", range(60, 110))
def test_nothing_beyond_the_most_is_tried_and_nothing_below_is_missed(room):
    found = largest(lambda samples: samples, room, most=100)
    assert found.samples == min(room, 100) and found.too_large == (room + 1 if room < 100 else None)
    assert max(samples for samples, _ in found.tried) <= 100
