"""What a process has once for all its groups: its threads, and the level of its log."""

from __future__ import annotations

import os

import pytest
import torch
import torch.distributed as dist
from ranks import HERE, join


def threads() -> int:
    return len(os.listdir("/proc/self/task"))


def threads_by_groups() -> list[int]:
    """On a rank: how many threads there are with one more group, and three more."""
    counts = []
    groups = []
    for _ in range(3):
        groups.append(dist.new_group(range(HERE.size)))
        work = dist.all_reduce(torch.ones(8), group=groups[-1], async_op=True)
        work.get_future().wait()
        counts.append(threads())
    for group in groups:
        dist.destroy_process_group(group)
    return counts


def joined() -> None:
    join(20.0, {})


def test_groups_share_the_threads_of_the_process(pair):
    for counts in pair.run(threads_by_groups):
        assert len(set(counts)) == 1, counts


@pytest.mark.parametrize(("level", "shown"), [("info", True), ("warning", False)])
def test_the_log_level_comes_from_the_environment(run_on_fresh_ranks, level, shown):
    world = run_on_fresh_ranks(2, log=level)
    world.run(joined)
    for rank in range(2):
        assert (f"[ringdp rank {rank}/2] info: group " in world.stderr(rank)) == shown
        assert ("plan: arena (" in world.stderr(rank)) == shown


def test_a_bad_log_level_is_refused(run_on_fresh_ranks):
    outcome = run_on_fresh_ranks(1, log="loud").attempt(joined)[0]
    assert "'loud' is no value for RINGDP_LOG: accepted is error|warning|info|debug" in outcome.error
