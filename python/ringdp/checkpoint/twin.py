"""A process group for the thread of a save: a group takes its collectives from one thread at a time."""

from __future__ import annotations

from weakref import WeakKeyDictionary

import torch.distributed as dist

from ringdp.checkpoint.ranks import Ranks, ranks_of
from ringdp.same_ranks import another_group

_twins: WeakKeyDictionary[dist.ProcessGroup, dist.ProcessGroup] = WeakKeyDictionary()


def twin_of(ranks: Ranks) -> Ranks:
    """Collective at the first call for a group: the same ranks on a group of their own, kept as long as the group."""
    group = ranks.group
    if group is None:
        return ranks
    if group not in _twins:
        _twins[group] = another_group(group)
    return ranks_of(_twins[group])
