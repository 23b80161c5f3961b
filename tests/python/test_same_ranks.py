"""A further group of the ranks of a group, also where ranks are in different numbers of groups."""

from __future__ import annotations

import torch
import torch.distributed as dist
from ranks import HERE
from ringdp.same_ranks import another_group


def sums_after_a_lopsided_group() -> tuple[float, str]:
    """On a rank of three: rank 1 is in one group less. The sum in another group of all; the error in one of two."""
    dist.new_group([0, 2])
    inner = dist.new_group([1, 2])
    again = another_group(dist.group.WORLD)
    total = torch.ones(1)
    dist.all_reduce(total, group=again)
    error = ""
    if HERE.rank != 0:
        try:
            another_group(inner)
        except RuntimeError as refused:
            error = str(refused)
    return float(total), error


def sum_in_another_pair() -> float:
    """On a rank of three: ranks 0 and 1 make another group of their own."""
    pair = dist.new_group([0, 1])
    if HERE.rank == 2:
        return 0.0
    other = another_group(pair)
    total = torch.ones(1)
    dist.all_reduce(total, group=other)
    for group in (other, pair):
        dist.destroy_process_group(group)
    return float(total)


def timeouts() -> list[float]:
    """On a rank: of the world, and of another group of the same ranks, which nobody has given one."""
    groups = (dist.group.WORLD, another_group(dist.group.WORLD))
    return [group._get_backend(torch.device("cpu")).options._timeout.total_seconds() for group in groups]


def test_it_has_the_timeout_of_the_group(run_on_fresh_ranks):
    world = run_on_fresh_ranks(1)
    world.join(timeout_s=77)
    assert world.run(timeouts) == [[77.0, 77.0]]


def test_the_world_needs_no_equal_counts_and_others_are_refused_by_name(run_on_fresh_ranks):
    world = run_on_fresh_ranks(3)
    world.join()
    of_all = world.run(sums_after_a_lopsided_group)
    assert [total for total, _ in of_all] == [3.0] * 3
    assert of_all[0][1] == ""
    for _, error in of_all[1:]:
        assert "ranks [1, 2]" in error and "rank 1 in 3, rank 2 in 4" in error, error


def test_a_group_of_some_ranks(run_on_fresh_ranks):
    world = run_on_fresh_ranks(3)
    world.join()
    assert world.run(sum_in_another_pair) == [2.0, 2.0, 0.0]
