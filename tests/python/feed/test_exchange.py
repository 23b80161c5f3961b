"""ringdp/feed/exchange.py: rank 0 sees everyone's records, everyone its verdict, and nobody waits for good."""

from __future__ import annotations

from datetime import timedelta
from itertools import count
from threading import Thread

import pytest
import torch.distributed as dist
from ringdp.feed import exchange
from ringdp.feed.exchange import Exchange, late_finding

GENEROUS = timedelta(seconds=60)


def seat(rank, size, store, timeout=GENEROUS):
    """An exchange of a rank that is a thread here."""
    made = Exchange(None, timeout)
    made.rank, made.size, made._store = rank, size, store
    return made


def test_alone_there_is_nothing_to_exchange():
    alone = Exchange(None, GENEROUS)
    assert alone.to_rank_0([{"kind": "x"}]) == {0: [{"kind": "x"}]}
    assert alone.from_rank_0("fine") == "fine"


def test_records_and_verdicts_of_two_rounds():
    store = dist.HashStore()
    seen = {}

    def rank(number):
        mine = seat(number, 3, store)
        for turn in range(2):
            got = mine.to_rank_0([{"kind": "batch", "indices": [number, turn]}])
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
    soon = timedelta(milliseconds=20)
    seat(1, 3, store, soon).to_rank_0([])
    with pytest.raises(TimeoutError, match="rank 2 did not come within 0.02 s"):
        seat(0, 3, store, soon).to_rank_0([])
    with pytest.raises(TimeoutError, match="rank 0"):
        seat(1, 3, store, soon).from_rank_0(None)
    assert "rank 2 did not come" in late_finding("rank 2 did not come").seen


def test_audits_do_not_share_keys(monkeypatch):
    monkeypatch.setattr(exchange, "_audits", count())
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        first, second = Exchange(None, GENEROUS), Exchange(None, GENEROUS)
        first._store.set("key", "one")
        assert not second._store.check(["key"])
    finally:
        dist.destroy_process_group()
