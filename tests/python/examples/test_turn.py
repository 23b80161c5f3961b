"""Rank 0 works, the others get its result, and nobody waits for ever."""

from __future__ import annotations

from threading import Event, Thread

import pytest
import torch.distributed as dist
from ringdp.examples import turn
from ringdp.examples.turn import on_rank_zero


@pytest.fixture
def store(monkeypatch) -> dist.HashStore:
    """Stands for the process group's store."""
    shared = dist.HashStore()
    monkeypatch.setattr(dist.distributed_c10d, "_get_default_store", lambda: shared)
    return shared


def test_rank_zero_works_once_and_the_others_get_its_result(store, monkeypatch):
    monkeypatch.setattr(dist, "get_rank", lambda: 0)
    assert on_rank_zero("a", lambda: "result of 0") == "result of 0"
    monkeypatch.setattr(dist, "get_rank", lambda: 1)
    assert on_rank_zero("a", pytest.fail) == "result of 0"


def test_the_others_wait_until_it_is_there(store, monkeypatch):
    monkeypatch.setattr(dist, "get_rank", lambda: 1)
    got, started = [], Event()

    def wait():
        started.set()
        got.append(on_rank_zero("b", pytest.fail))

    waiting = Thread(target=wait)
    waiting.start()
    started.wait()
    assert got == []
    store.set("on_rank_zero/b", "late")
    waiting.join()
    assert got == ["late"]


def test_a_rank_zero_that_never_finishes_is_named(store, monkeypatch):
    monkeypatch.setattr(dist, "get_rank", lambda: 1)
    monkeypatch.setattr(turn, "LIMIT_S", 0.0)
    with pytest.raises(TimeoutError, match="rank 0 has not finished 'c'"):
        on_rank_zero("c", pytest.fail)
