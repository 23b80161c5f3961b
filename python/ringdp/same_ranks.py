"""Another process group of the same ranks, and the timeout of one."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch.distributed import distributed_c10d

from ringdp.gather_objects import gather_objects


def timeout_of(group: dist.ProcessGroup) -> timedelta:
    """Of its collectives."""
    timeout: timedelta = group._get_backend(group._device_types[0]).options._timeout
    return timeout


def another_group(group: dist.ProcessGroup, **options: Any) -> dist.ProcessGroup:
    """dist.new_group(**options) of the same ranks, with the group's timeout. Collective for these ranks only.

    torch names such a group by the number of groups that a rank is in. Ranks that are in different numbers of groups
    would wait for each other under different names until the timeout, so all of them raise a RuntimeError.
    """
    options.setdefault("timeout", timeout_of(group))  # torch's own default is half an hour, whatever the group's
    if group is dist.group.WORLD:
        return dist.new_group(**options)  # named by a count that all ranks share
    members = dist.get_process_group_ranks(group)
    counts: list[int] = gather_objects(len(distributed_c10d._world.pg_names), group)
    if len(set(counts)) > 1:
        of_each = ", ".join(f"rank {rank} in {count}" for rank, count in zip(members, counts, strict=True))
        raise RuntimeError(
            f"ringdp needs another process group of ranks {members}, and torch cannot make one where these ranks are "
            f"in different numbers of groups ({of_each}). Create groups of only some of these ranks later, or put "
            "every rank into equally many."
        )
    return dist.new_group(members, use_local_synchronization=True, **options)
