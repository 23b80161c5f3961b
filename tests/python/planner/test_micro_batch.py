"""ringdp/planner/micro_batch.py: against counting up."""

import pytest
from ringdp.planner.micro_batch import largest


@pytest.mark.parametrize("room", [*range(0, 40), 1000, 12345])
def test_the_largest_by_counting_up(room):
    def needed(samples):
        return 7 + 3 * samples

    expected = max((n for n in range(1, 5000) if needed(n) <= room), default=0)
    found = largest(needed, room)
    assert found.samples == expected and found.too_large == expected + 1
    assert found.needed == (needed(expected) if expected else 0)
    assert len(found.tried) <= 2 * (expected + 1).bit_length() + 1


def test_it_ends_where_everything_fits():
    found = largest(lambda samples: 0, 1, most=64)
    assert (found.samples, found.too_large) == (64, None)
