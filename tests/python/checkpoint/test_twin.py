"""The twin of a group has its ranks, is made once, and can be used while the group is."""

from __future__ import annotations

import threading

import torch
import torch.distributed as dist
from ringdp.checkpoint.ranks import Ranks, ranks_of
from ringdp.checkpoint.twin import twin_of


def both_at_once(members: list[int]) -> object:
    group = dist.new_group(members) if len(members) < dist.get_world_size() else dist.group.WORLD
    if dist.get_rank() not in members:
        return None
    ranks = ranks_of(group)
    twin = twin_of(ranks)
    said: list[object] = []
    thread = threading.Thread(target=lambda: said.extend(twin.agree("in the thread", lambda: twin.rank)))
    thread.start()
    total = torch.ones(5, dtype=torch.float64)
    for _ in range(20):
        dist.all_reduce(total, group=group)
    thread.join()
    same = twin_of(ranks).group is twin.group is not group
    return same, said, total[0].item()


def test_it_is_made_once_and_used_beside_the_group(trio):
    assert trio.run(both_at_once, [0, 1, 2]) == [(True, [0, 1, 2], 3.0**20)] * 3


def test_a_group_of_some_ranks_has_a_twin_of_those(trio):
    assert trio.run(both_at_once, [0, 2]) == [(True, [0, 1], 2.0**20), None, (True, [0, 1], 2.0**20)]


def test_a_process_alone_needs_none():
    assert twin_of(Ranks(None, 0, 1)) == Ranks(None, 0, 1)
