"""ringdp/selftest/exchanges.py: the calls satisfy their oracle on a working backend, and on no broken one."""

from __future__ import annotations

import pytest
from calls_on_rank import differences, differences_without

OPS = {
    "all_to_all": "all_to_all",
    "all_to_all flat": "all_to_all_single",
    "all_to_all splits": "all_to_all_single",
    "send/recv": "recv",
    "send/recv batch": "batch_isend_irecv",
}


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("op", OPS)
def test_a_working_backend_has_no_differences(pair, op, asynchronous):
    for checks, found in pair.run(differences, op, asynchronous):
        assert checks > 0
        assert found == []


@pytest.mark.parametrize(("op", "function"), [item for item in OPS.items() if item[0] != "send/recv"])
def test_a_call_that_does_nothing_is_seen(pair, op, function):
    assert all(found for _, found in pair.run(differences_without, op, function))
