"""Every call of a self-test is made and checked, in every form of a rank context."""

from __future__ import annotations

import itertools

import ringdp
import torch
from calls_on_rank import differences, differences_without
from ringdp.selftest.calls import RankContext
from ringdp.selftest.cases import FAMILIES, OPS, Case, cases_of
from ringdp.selftest.oracle import COLUMNS, REDUCE_OPS


def test_everyone_has_the_same_inputs_for_everyone():
    first, second = (RankContext(rank, 3, label="x").inputs(4, torch.int32) for rank in range(2))
    assert len(first) == 3
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_label_and_part_choose_other_inputs():
    context = RankContext(0, 1, label="x")
    assert not torch.equal(context.inputs(40, torch.int32)[0], context.inputs(40, torch.int32, "part")[0])
    assert not torch.equal(context.inputs(40, torch.int32)[0], RankContext(0, 1, label="y").inputs(40, torch.int32)[0])


def test_copies_are_equal_and_a_shared_seat_asks_for_shared_memory(monkeypatch):
    asked = []
    monkeypatch.setattr(ringdp, "empty", lambda size, **given: asked.append(given["group"]) or torch.empty(size))
    tensor = torch.arange(6.0)
    for shared in (False, True):
        copy = RankContext(0, 1, group="mine", shared=shared).copy_of(tensor)
        assert torch.equal(copy, tensor)
        assert copy.data_ptr() != tensor.data_ptr()
    assert asked == ["mine"]


def test_waits_for_works_only():
    waited = []
    context = RankContext(0, 1)
    context.wait(None)
    context.wait(type("Work", (), {"wait": lambda self: waited.append(1)})())
    assert waited == [1]


def test_every_op_meets_every_dtype_and_reduce_op_once():
    cases = cases_of(FAMILIES, 2)
    assert len(set(cases)) == len(cases)
    for name, op in OPS.items():
        count = len(COLUMNS) * (len(REDUCE_OPS) if op.reduces else 1) if op.typed else 1
        assert sum(case.op == name for case in cases) == count


def test_a_family_is_all_forms_of_one_op():
    assert {case.op for case in cases_of(["all_to_all"], 2)} == {"all_to_all", "all_to_all flat", "all_to_all splits"}


def test_one_rank_has_nobody_to_send_to():
    assert cases_of(["send/recv"], 1) == []
    assert cases_of(["send/recv"], 2)


def test_meaning_and_name():
    assert Case("barrier").meaningful and Case("gather", "float8_e5m2").meaningful
    assert not Case("reduce", "int32", "PREMUL_SUM").meaningful
    assert str(Case("reduce", "int32", "AVG")) == "reduce int32 AVG"


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
