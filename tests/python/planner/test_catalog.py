"""ringdp/planner/catalog.py: every kind once, every default and example valid."""

import pytest
from ringdp.planner.catalog import _ROOMS, KINDS


def test_no_kind_hides_another():
    assert len(KINDS) == sum(len(room.KINDS) for room in _ROOMS)


@pytest.mark.parametrize("kind", KINDS.values(), ids=lambda kind: kind.name)
def test_defaults_are_what_one_may_type(kind):
    for entry in kind.inputs:
        if entry.default:
            entry.parse(entry.default)
    assert len({entry.name for entry in kind.inputs}) == len(kind.inputs)
    assert all(entry.help for entry in kind.inputs)
