"""Clocks of made-up hosts are found again."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from made_up import MS, Run
from ringdp.observe.clocks import offsets
from ringdp.observe.collectives import collectives


def found(dumps):
    return offsets(dumps, collectives(dumps))


def test_ranks_of_one_host_share_a_clock():
    assert {offset.ns for offset in found(Run(ranks=3).dumps()).values()} == {0}


def test_hosts_are_matched_by_the_ends_of_collectives():
    run = Run(ranks=4, boots=("a", "b"), zero=lambda rank: 77 * MS if rank % 2 else 0)
    got = found(run.dumps())
    assert [got[rank].how for rank in range(4)] == ["shared", "matched", "shared", "matched"]
    assert [got[rank].ns for rank in range(4)] == [0, -77 * MS, 0, -77 * MS]


def test_late_news_of_an_end_moves_the_median_little_and_shows_in_the_spread():
    run = Run(ranks=2, steps=101, boots=("a", "b"), zero=lambda rank: -5 * MS * rank)
    chance = random.Random(1)
    dumps = run.dumps()
    late = tuple(
        e._replace(time=e.time + chance.randint(0, MS // 10)) if e.kind == "finished" else e for e in dumps[1].events
    )
    offset = found([dumps[0], replace(dumps[1], events=late)])[1]
    assert offset.ns == pytest.approx(5 * MS, abs=MS // 10)
    assert 0 < offset.spread <= MS // 10


def test_without_common_collectives_the_wall_clocks_must_do():
    run = Run(ranks=2, boots=("a", "b"), zero=lambda rank: 9 * MS * rank)
    dumps = run.dumps()
    alone = [dumps[0], replace(dumps[1], events=tuple(e for e in dumps[1].events if e.kind != "finished"))]
    offset = found(alone)[1]
    assert (offset.how, offset.ns) == ("wall", 5 * MS - 9 * MS)
