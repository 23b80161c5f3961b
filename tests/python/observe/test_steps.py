"""Steps of made-up traces have the data and compute times that went in."""

from __future__ import annotations

from dataclasses import replace

import pytest
from made_up import MS, Run
from ringdp.observe.steps import steps_of


def test_phases_are_without_the_waits():
    run = Run(ranks=2, steps=5, data=lambda rank, step: 1.0 + rank, compute=lambda rank, step: 10.0 * (2 - rank))
    for rank, dump in enumerate(run.dumps()):
        steps = steps_of(dump)
        assert [step.number for step in steps] == [2, 3, 4, 5]  # nothing is before the first
        for step in steps:
            assert step.data == pytest.approx(run.data(rank, 0) * MS, abs=2)
            assert step.compute == pytest.approx(run.compute(rank, 0) * MS, abs=2)


def test_a_wait_inside_a_phase_is_taken_out():
    dump = Run(ranks=1, steps=2).dumps()[0]
    plain = steps_of(dump)[0]
    inside = plain.began + MS // 2 + MS // 5
    waited = dump.events[-1]._replace(kind="waited", time=inside, ns=MS // 5)
    held = steps_of(replace(dump, events=tuple(sorted((*dump.events, waited), key=lambda e: e.time))))[0]
    assert held.data == plain.data - MS // 5
    assert held.compute == plain.compute


def test_a_step_with_a_mark_missing_is_left_out():
    dump = Run(ranks=1, steps=6).dumps()[0]
    cut = replace(dump, events=tuple(e for e in dump.events if (e.kind, e.seq) != ("computed", 4)))
    assert 4 not in [step.number for step in steps_of(cut)]
    assert [step.number for step in steps_of(dump)] == [2, 3, 4, 5, 6]
