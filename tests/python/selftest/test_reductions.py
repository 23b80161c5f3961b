"""ringdp/selftest/reductions.py: the calls satisfy their oracle on a working backend, and on no broken one."""

from __future__ import annotations

import pytest
from calls_on_rank import differences, differences_without

OPS = {
    "all_reduce": "all_reduce",
    "reduce": "reduce",
    "reduce_scatter": "reduce_scatter",
    "reduce_scatter uneven": "reduce_scatter",
    "reduce_scatter flat": "reduce_scatter_tensor",
    "all_reduce coalesced": "all_reduce",
    "reduce_scatter coalesced": "reduce_scatter_tensor",
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
