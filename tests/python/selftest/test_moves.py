"""ringdp/selftest/moves.py: the calls satisfy their oracle on a working backend, and on no broken one."""

from __future__ import annotations

import pytest
from calls_on_rank import differences, differences_without

OPS = {
    "broadcast": "broadcast",
    "all_gather": "all_gather",
    "all_gather uneven": "all_gather",
    "all_gather flat": "all_gather_into_tensor",
    "all_gather coalesced": "all_gather_into_tensor",
    "gather": "gather",
    "scatter": "scatter",
}


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("op", OPS)
def test_a_working_backend_has_no_differences(pair, op, asynchronous):
    for checks, found in pair.run(differences, op, asynchronous):
        assert checks > 0
        assert found == []


@pytest.mark.parametrize(("op", "function"), [item for item in OPS.items() if "coalesced" not in item[0]])
def test_a_call_that_does_nothing_is_seen(pair, op, function):
    assert all(found for _, found in pair.run(differences_without, op, function))


def test_barrier_returns(pair):
    assert pair.run(differences, "barrier", False) == [(2, [])] * 2
