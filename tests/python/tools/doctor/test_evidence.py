"""Records side by side."""

from __future__ import annotations

import pytest
from ringdp.tools.doctor.evidence import WARM_UP, Evidence
from synthetic import STEPS, evidence


def test_steps_that_all_ranks_have_made():
    short = evidence(more=lambda rank: {"step": [{"step": 0, "seconds": 1.0}]} if rank else {})
    assert list(short.by_step("step")) == [0]
    assert (short.warm("step"), short.step_seconds()) == ({}, 0.0)
    assert list(evidence().warm("step")) == list(range(WARM_UP, STEPS))


def test_waiting_is_what_nothing_hid_and_what_the_script_called():
    found = evidence(step=lambda rank, step: {"called": 0.002 * rank}).waits()
    assert found[WARM_UP] == {0: pytest.approx(0.005), 1: pytest.approx(0.007)}
    assert STEPS - 1 not in found  # the wrapper's figures come one step later
    by_hand = evidence(step=lambda rank, _: {"called": 0.002, "buffers": 0.001 * rank}, more=lambda rank: {"ddp": []})
    assert by_hand.waits()[STEPS - 1] == {0: 0.002, 1: pytest.approx(0.003)}


def test_completeness():
    assert evidence().complete
    assert not evidence(1).complete
    assert not Evidence({}).complete and Evidence({}).model() == {}
    assert not evidence(more=lambda rank: {"step": []} if rank else {}).complete
