"""A process group for the thread of a save: a group takes its collectives from one thread at a time."""

from __future__ import annotations

from weakref import WeakKeyDictionary

import torch.distributed as dist

from ringdp.checkpoint.ranks import Ranks, ranks_of

_twins: WeakKeyDictionary[dist.ProcessGroup, dist.ProcessGroup] = WeakKeyDictionary()


def twin_of(ranks: Ranks) -> Ranks:
    """Collective at the first call for a group: the same ranks on a group of their own, kept as long as the group."""
    group = ranks.group
    if group is None:
        return ranks
    if group not in _twins:
        if group is dist.group.WORLD:
            _twins[group] = dist.new_group()
        else:
            members = dist.get_process_group_ranks(group)
            _twins[group] = dist.new_group(members, use_local_synchronization=True)
    return ranks_of(_twins[group])
