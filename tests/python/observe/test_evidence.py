"""From made-up traces to the table of the judge: what went in comes out, in seconds."""

from __future__ import annotations

from dataclasses import replace

import pytest
from made_up import Run, as_file
from ringdp.observe.dump import TraceError
from ringdp.observe.evidence import table_of, table_of_folder


def test_the_table_has_what_was_made_up():
    run = Run(
        ranks=3,
        steps=6,
        compute=lambda rank, step: 10.0 + 5 * rank,
        transfer=2.0,
        full=lambda rank, peer: 1.5 if (rank, peer) == (1, 2) else 0,
        zero=lambda rank: 10**15 * rank,
    )
    table = table_of(run.dumps())
    assert len(table.waits) == 5  # the first is warming up
    for waits in table.waits:
        assert waits == pytest.approx({0: 0.010, 1: 0.005, 2: 0.0}, abs=1e-8)
    assert len(table.steps) == 5
    assert table.within == [0, 1, 2, 3, 4]
    for step in table.steps:
        for rank, work in step.items():
            assert (work.data, work.compute) == pytest.approx((0.001, 0.010 + 0.005 * rank), abs=1e-8)
    assert table.full == {(1, 2): (pytest.approx(5 * 0.0015), 5 * run.size)}
    assert table.held == pytest.approx({rank: 5 * 0.002 for rank in range(3)}, abs=1e-7)
    assert table.seconds == pytest.approx(5 * 0.023, rel=0.1)


def test_models_that_count_their_own_steps_are_told_apart():
    dumps = Run(ranks=2, steps=9, compute=lambda rank, step: 10.0 + 5 * rank + step).dumps()
    marks = ("forward", "backward", "computed", "stepped")
    # A second model begins at the sixth step; rank 1 has lost its first events.
    both = [
        replace(d, events=tuple(e._replace(seq=e.seq - 5) if e.kind in marks and e.seq > 5 else e for e in d.events))
        for d in dumps
    ]
    cut = replace(both[1], events=both[1].events[20:])
    whole = [step for step in table_of([both[0], cut]).steps if len(step) == 2]
    assert len(whole) >= 6
    for step in whole:
        assert step[1].compute - step[0].compute == pytest.approx(0.005, abs=1e-8)


def test_a_rank_without_a_trace_is_named(tmp_path):
    for dump in Run(ranks=3, steps=4).dumps()[:2]:
        as_file(dump, tmp_path)
    with pytest.raises(TraceError, match=r"no trace of ranks \[2\]"):
        table_of_folder(tmp_path)


def test_nothing_in_common_is_said():
    with pytest.raises(TraceError, match="nothing to compare"):
        table_of(Run(ranks=2, steps=1).dumps())
    with pytest.raises(TraceError, match="nothing to compare"):
        table_of(Run(ranks=1, steps=9).dumps())
