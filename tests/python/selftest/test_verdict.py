"""ringdp/selftest/verdict.py: exact, refused, wrong - with a play backend in place of a group."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from ringdp.selftest import verdict
from ringdp.selftest.cases import OPS, Case
from ringdp.selftest.seat import Seat

SEAT = Seat(0, 1)
SUM = Case("all_reduce", "int32", "SUM")
PREMUL_SUM = Case("all_reduce", "int32", "PREMUL_SUM")


@pytest.fixture
def play(monkeypatch):
    """play(call): all_reduce is this generator."""

    def replace(call):
        monkeypatch.setitem(OPS, "all_reduce", dataclasses.replace(OPS["all_reduce"], call=call))

    return replace


def test_equal_results_are_exact(play):
    counts = []

    def call(seat, dtype, reduce, count):
        counts.append(count)
        yield "result", torch.ones(count, dtype=dtype), torch.ones(count, dtype=dtype)

    play(call)
    assert verdict.judge(SEAT, SUM) == verdict.Verdict(verdict.EXACT)
    assert 0 in counts and len(counts) > 2


def test_a_wrong_result_is_described_and_the_calls_go_on(play):
    counts = []

    def call(seat, dtype, reduce, count):
        counts.append(count)
        yield "result", torch.ones(count, dtype=dtype), torch.zeros(count, dtype=dtype)

    play(call)
    judged = verdict.judge(SEAT, SUM)
    assert judged.kind == verdict.WRONG and not judged.raised
    assert judged.why.startswith("result of 5 elements: element 0 of 5: expected 0, got 1")
    assert max(counts) > 5


def test_an_error_is_a_wrong_result_of_its_own_kind(play):
    def call(*_):
        raise RuntimeError("PeerLost: rank 1\nC++ stack")
        yield

    play(call)
    assert verdict.judge(SEAT, SUM) == verdict.Verdict(verdict.WRONG, "RuntimeError: PeerLost: rank 1", raised=True)


@pytest.mark.parametrize(("message", "kind"), [("PREMUL_SUM of whole numbers", "refused"), ("no", "wrong"), (None, "wrong")])
def test_what_has_no_meaning_must_be_refused_by_name(play, message, kind):
    def call(seat, dtype, reduce, count):
        if message:
            raise ValueError(message)
        yield "result", torch.ones(1), torch.ones(1)

    play(call)
    assert verdict.judge(SEAT, PREMUL_SUM).kind == kind
