"""From traces to the judge's table: spans, steps, waits."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import pairwise

import pytest
from made_up import MS, Run, as_file
from ringdp.tools.observe.evidence import covered, overlap, steps_of, table_of, table_of_folder, union
from ringdp.tools.observe.traces import TraceError


def moments(spans):
    return {t for begin, end in spans for t in range(begin, end)}


@pytest.mark.parametrize("seed", range(20))
def test_against_single_moments(seed):
    chance = random.Random(seed)

    def spans():
        return [(b, b + chance.randint(-2, 9)) for b in (chance.randint(0, 60) for _ in range(chance.randint(0, 12)))]

    one, other = spans(), spans()
    joined, second = union(one), union(other)
    assert moments(joined) == moments(one)
    assert all(a[1] < b[0] for a, b in pairwise(joined))
    assert overlap(joined, second) == len(moments(one) & moments(other))
    for begin, end in other:
        assert covered(joined, begin, end) == len(moments(one) & moments([(begin, end)]))


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
