"""Rows put together from made-up traces have the durations that went in."""

from __future__ import annotations

from dataclasses import replace

import pytest
from made_up import MS, Run
from ringdp.observe.collectives import collectives
from ringdp.observe.dump import Event, Group


def test_waits_and_transfers_are_those_that_were_made_up():
    run = Run(3, 4, compute=lambda rank, step: 10.0 + 7 * (rank == 1), transfer=2.5, zero=lambda rank: 10**12 * rank)
    rows = collectives(run.dumps())
    assert [row.seq for row in rows] == [1, 2, 3, 4]
    for row in rows:
        assert (row.group, row.name, row.dtype, row.op) == ("0", "all_reduce", "float32", "SUM")
        assert row.algorithm == "direct"
        assert row.whole and row.bytes == run.size
        assert {rank: side.wait for rank, side in row.sides.items()} == {0: 7 * MS, 1: 0, 2: 7 * MS}
        assert all(side.transfer == pytest.approx(2.5 * MS, abs=2) for side in row.sides.values())


def test_what_a_rank_has_not_seen_or_failed_is_not_whole():
    dumps = Run(ranks=2, steps=3).dumps()
    cut = replace(dumps[1], events=tuple(e for e in dumps[1].events if (e.kind, e.seq) != ("arrived", 2)))
    fails = {("finished", 3): "failed"}
    failed = replace(cut, events=tuple(e._replace(kind=fails.get((e.kind, e.seq), e.kind)) for e in cut.events))
    assert [row.whole for row in collectives([dumps[0], failed])] == [True, False, False]
    assert [row.whole for row in collectives(dumps[:1])] == [False] * 3


def test_groups_of_one_name_are_told_apart():
    dump = Run(ranks=1, steps=2).dumps()[0]
    again = Event("enqueued", 10**9, group=1, seq=1, name="barrier")
    both = replace(dump, groups=(*dump.groups, Group("0", 0, (0,))), events=(*dump.events, again))
    rows = [(row.seq, row.name) for row in collectives([both])]
    assert rows == [(1, "all_reduce"), (2, "all_reduce"), (1, "barrier")]


def test_full_links_name_ranks_of_the_job():
    run = Run(ranks=2, steps=1, full=lambda rank, peer: 4.0 if rank == 0 else 0)
    dumps = [replace(d, groups=(Group("0", d.groups[0].rank, (0, 1)),)) for d in run.dumps()]
    row = collectives(dumps)[0]
    assert row.sides[0].backlogs == {1: (run.size, 4 * MS)}
    assert row.sides[1].backlogs == {}
