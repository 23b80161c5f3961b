"""A further process group of the ranks of a group."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist
from torch.distributed import distributed_c10d


def another_group(group: dist.ProcessGroup, **options: Any) -> dist.ProcessGroup:
    """dist.new_group(**options) of the same ranks, with the group's timeout. Collective for these ranks alone.

    torch names a group of some ranks after how many groups each of them is in, so ranks that are in different numbers
    of groups would wait for each other under different names until the timeout: RuntimeError on all of them.
    """
    # torch's own default is half an hour, whatever the group's.
    options.setdefault("timeout", group._get_backend(group._device_types[0]).options._timeout)
    if group is dist.group.WORLD:
        return dist.new_group(**options)  # named by a count that all ranks share
    members = dist.get_process_group_ranks(group)
    counts: list[int] = [0] * len(members)
    dist.all_gather_object(counts, len(distributed_c10d._world.pg_names), group=group)
    if len(set(counts)) > 1:
        of_each = ", ".join(f"rank {rank} in {count}" for rank, count in zip(members, counts, strict=True))
        raise RuntimeError(
            f"ringdp needs another process group of ranks {members}, and torch cannot make one where these ranks are "
            f"in different numbers of groups ({of_each}). Make the groups that only some of them are in later, or "
            "give every rank as many."
        )
    return dist.new_group(members, use_local_synchronization=True, **options)
