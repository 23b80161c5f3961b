"""ringdp/selftest's calls satisfy their oracle on a working backend, and on no broken one."""

from __future__ import annotations

import itertools

from calls_on_rank import differences, differences_without
from ringdp.selftest.cases import OPS

# What each op calls. A coalesced call is several of these; a send that nobody receives never ends.
FUNCTIONS = {
    "broadcast": "broadcast",
    "all_gather": "all_gather",
    "all_gather uneven": "all_gather",
    "all_gather flat": "all_gather_into_tensor",
    "all_gather coalesced": "",
    "gather": "gather",
    "scatter": "scatter",
    "all_reduce": "all_reduce",
    "reduce": "reduce",
    "reduce_scatter": "reduce_scatter",
    "reduce_scatter uneven": "reduce_scatter",
    "reduce_scatter flat": "reduce_scatter_tensor",
    "all_reduce coalesced": "",
    "reduce_scatter coalesced": "",
    "all_to_all": "all_to_all",
    "all_to_all flat": "all_to_all_single",
    "all_to_all splits": "all_to_all_single",
    "send/recv": "",
    "send/recv batch": "batch_isend_irecv",
    "barrier": "",
}


def all_differences(ops: list[str]) -> tuple[list[str], list[str]]:
    """On a rank: the ops that check nothing, called either way, and what differs."""
    idle, wrong = [], []
    for op, asynchronous in itertools.product(ops, (False, True)):
        checks, found = differences(op, asynchronous)
        idle += [] if checks else [f"{op}, asynchronous={asynchronous}"]
        wrong += found
    return idle, wrong


def unnoticed(functions: dict[str, str]) -> list[str]:
    """On a rank: the ops whose call may do nothing without anything differing."""
    return [op for op, function in functions.items() if not differences_without(op, function)[1]]


def test_every_op_is_here():
    assert set(FUNCTIONS) == set(OPS)


def test_a_working_backend_has_no_differences(pair):
    assert pair.run(all_differences, list(FUNCTIONS)) == [([], [])] * 2


def test_a_call_that_does_nothing_is_seen(pair):
    assert pair.run(unnoticed, {op: function for op, function in FUNCTIONS.items() if function}) == [[], []]
