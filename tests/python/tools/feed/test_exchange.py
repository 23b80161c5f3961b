"""Rank 0 sees the records of all ranks, all ranks its verdict, and no rank waits for good."""

from __future__ import annotations

from datetime import timedelta
from itertools import count
from threading import Thread

import pytest
import torch.distributed as dist
from ringdp.tools.feed import exchange
from ringdp.tools.feed.exchange import Exchange, late_finding

GENEROUS = timedelta(seconds=60)
SOON = timedelta(milliseconds=20)  # for who does not come at all


def seat(rank, size, store, timeout=GENEROUS):
    """An exchange of a rank that is a thread here."""
    made = Exchange(None, timeout)
    made.rank, made.size, made._store = rank, size, store
    return made


def test_alone_there_is_nothing_to_exchange():
    alone = Exchange(None, GENEROUS)
    assert alone.to_rank_0([{"kind": "x"}]) == ({0: [{"kind": "x"}]}, "")
    assert alone.from_rank_0("fine") == "fine"


def test_records_and_verdicts_of_two_rounds():
    store = dist.HashStore()
    seen = {}

    def rank(number):
        mine = seat(number, 3, store)
        for turn in range(2):
            got, late = mine.to_rank_0([{"kind": "batch", "indices": [number, turn]}])
            assert late == ""
            verdict = [rows[0]["indices"] for _, rows in sorted(got.items())] if number == 0 else None
            seen[number, turn] = mine.from_rank_0(verdict)

    threads = [Thread(target=rank, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert seen == {(number, turn): [[r, turn] for r in range(3)] for number in range(3) for turn in range(2)}


def test_ranks_that_do_not_come_are_named():
    store = dist.HashStore()
    early = seat(1, 3, store, SOON)
    early.to_rank_0([])
    assert seat(0, 3, store, SOON).to_rank_0([])[1] == "rank 2 did not come within 0.02 s"
    with pytest.raises(TimeoutError, match=r"rank 0 did not come within 0\.04 s"):
        early.from_rank_0(None)
    assert "rank 2 did not come" in late_finding("rank 2 did not come").seen


def test_what_a_late_rank_brings_is_handed_out_later_and_nothing_of_the_others_is_lost():
    store = dist.HashStore()
    judging, punctual, slow = (seat(rank, 3, store, SOON) for rank in range(3))
    punctual.to_rank_0([1])
    assert judging.to_rank_0([0]) == ({0: [0], 1: [1], 2: []}, "rank 2 did not come within 0.02 s")
    slow.to_rank_0([2])
    slow.to_rank_0([22])
    punctual.to_rank_0([11])
    assert judging.to_rank_0([]) == ({0: [], 1: [11], 2: [2, 22]}, "")


def test_a_rank_that_is_ahead_is_waited_for_in_its_own_round():
    store = dist.HashStore()
    judging, hasty = (seat(rank, 2, store, SOON) for rank in range(2))
    hasty.to_rank_0([1])
    hasty.to_rank_0([11])
    assert judging.to_rank_0([]) == ({0: [], 1: [1]}, "")
    assert judging.to_rank_0([]) == ({0: [], 1: [11]}, "")


def test_the_store_does_not_fill_up():
    store = dist.HashStore()
    judging, other = (seat(rank, 2, store) for rank in range(2))
    sizes = []
    for turn in range(5):
        other.to_rank_0([turn])
        judging.to_rank_0([turn])
        judging.from_rank_0(turn)
        assert other.from_rank_0(None) == turn
        sizes.append(store.num_keys())
    assert sizes == [1, 1, 1, 1, 1]


def test_audits_do_not_share_keys(monkeypatch):
    monkeypatch.setattr(exchange, "_audits", count())
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        first, second = Exchange(None, GENEROUS), Exchange(None, GENEROUS)
        first._store.set("key", "one")
        assert not second._store.check(["key"])
    finally:
        dist.destroy_process_group()
