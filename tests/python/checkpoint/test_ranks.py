"""A step on all ranks has all results or one error, also over the async group of a background save."""

from __future__ import annotations

import threading

import pytest
import torch
import torch.distributed as dist
from ranks import HERE
from ringdp.checkpoint import CheckpointError
from ringdp.checkpoint.ranks import Ranks, async_group_of, ranks_of


def on_rank(bad: list[int]) -> object:
    def action() -> int:
        if HERE.rank in bad:
            raise KeyError(f"from {HERE.rank}")
        return HERE.rank * 10

    return ranks_of(None).agree("counting", action)


def kept_on_rank() -> object:
    own = ranks_of(None).keep("keeping", lambda: lambda: HERE.rank)  # a closure cannot travel
    return own()


def first_on_rank() -> object:
    return ranks_of(None).on_first("choosing", lambda: f"of rank {HERE.rank}")


def test_every_rank_has_every_result(trio):
    assert trio.run(on_rank, []) == [[0, 10, 20]] * 3


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        ([1], "counting, on rank 1: KeyError: 'from 1'"),
        ([0, 2], "counting, on rank 0 (and on rank 2): KeyError: 'from 0'"),
    ],
)
def test_an_error_on_one_rank_is_raised_on_all(trio, bad, said):
    assert [outcome.error for outcome in trio.attempt(on_rank, bad)] == [f"CheckpointError: {said}"] * 3
    assert trio.run(on_rank, []) == [[0, 10, 20]] * 3


def test_a_result_can_be_kept(trio):
    assert trio.run(kept_on_rank) == [0, 1, 2]


def test_rank_0_can_decide(trio):
    assert trio.run(first_on_rank) == ["of rank 0"] * 3


def test_a_process_alone_needs_no_group():
    alone = ranks_of(None)
    assert alone == Ranks(None, 0, 1)
    assert alone.agree("x", lambda: 5) == [5]
    with pytest.raises(CheckpointError, match=r"^walking: ZeroDivisionError") as caught:
        alone.agree("walking", lambda: 1 / 0)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def both_at_once(members: list[int]) -> object:
    group = dist.new_group(members) if len(members) < dist.get_world_size() else dist.group.WORLD
    if dist.get_rank() not in members:
        return None
    ranks = ranks_of(group)
    twin = async_group_of(ranks)
    said: list[object] = []
    thread = threading.Thread(target=lambda: said.extend(twin.agree("in the thread", lambda: twin.rank)))
    thread.start()
    total = torch.ones(5, dtype=torch.float64)
    for _ in range(20):
        dist.all_reduce(total, group=group)
    thread.join()
    same = async_group_of(ranks).group is twin.group is not group
    return same, said, total[0].item()


def test_it_is_made_once_and_used_beside_the_group(trio):
    assert trio.run(both_at_once, [0, 1, 2]) == [(True, [0, 1, 2], 3.0**20)] * 3


def test_a_group_of_some_ranks_has_a_twin_of_those(trio):
    assert trio.run(both_at_once, [0, 2]) == [(True, [0, 1], 2.0**20), None, (True, [0, 1], 2.0**20)]


def test_a_process_alone_needs_none():
    assert async_group_of(Ranks(None, 0, 1)) == Ranks(None, 0, 1)
