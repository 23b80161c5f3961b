"""The comparison: phases add up, every phase is measured, and the trained model is left alone."""

from __future__ import annotations

import copy

import pytest
from ringdp.examples.comparison import Split, compare
from ringdp.examples.corpus import Windows, read
from ringdp.examples.feed import Feed
from ringdp.examples.trainer import make
from ringdp.testing import parameters_hash


def test_a_step_is_the_sum_of_its_phases():
    assert Split(forward=1.0, backward=2.0, communication=0.5, optimizer=0.25).step == 3.75


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("ddp", ["ringdp", "stock"])
def test_every_phase_is_measured_and_the_model_stays_as_it_is(tiny, ddp):
    options = tiny()
    model = make(options, options.seq)
    before = parameters_hash(copy.deepcopy(model))
    windows = Windows(read(options.corpus).train, options.seq, "training")
    comparison = compare(model, Feed(windows, options.batch, 0, 1, 0).starting_at(0), 3, ddp)
    stock = [comparison.stock] if ddp == "ringdp" else []
    assert (comparison.stock is None) == (comparison.stock_ratio is None) == (ddp == "stock")
    for split in (comparison.ours, comparison.gloo, *stock):
        assert min(split.forward, split.backward, split.optimizer) > 0
        assert split.communication >= 0
    assert comparison.ratio > 0
    assert comparison.traffic is None, "gloo counts no bytes"
    assert parameters_hash(model) == before
