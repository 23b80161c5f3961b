"""Doing a step on all ranks: either every rank has every rank's result, or every rank raises the same error.

Without a process group there is one rank, and nothing is exchanged.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import torch.distributed as dist

from ringdp.checkpoint.piece import CheckpointError
from ringdp.same_ranks import another_group

Result = TypeVar("Result")


@dataclass(frozen=True)
class _Failure:
    """What went wrong on a rank, as text: an exception itself may not survive the journey."""

    said: str


@dataclass(frozen=True)
class Ranks:
    """The ranks that save or load together; `group` is None for a process alone."""

    group: dist.ProcessGroup | None
    rank: int
    size: int

    def agree(self, step: str, action: Callable[[], Any]) -> list[Any]:
        """Collective: the results of `action` on every rank, in rank order.

        Raises CheckpointError on every rank, naming the rank and the step, when it failed on one.
        """
        cause: Exception | None = None
        try:
            mine = action()
        except Exception as error:
            cause = error
            # A CheckpointError explains itself; other types are part of the explanation.
            mine = _Failure(str(error) if isinstance(error, CheckpointError) else f"{type(error).__name__}: {error}")
        everyones = self._gather(mine)
        failures = [(rank, its.said) for rank, its in enumerate(everyones) if isinstance(its, _Failure)]
        if failures:
            raise CheckpointError(self._sentence(step, failures)) from cause
        return everyones

    def keep(self, step: str, action: Callable[[], Result]) -> Result:
        """Collective: this rank's own result, which may be large or not fit to travel, when all ranks have theirs."""
        own: list[Result] = []
        self.agree(step, lambda: own.append(action()))
        return own[0]

    def on_first(self, step: str, action: Callable[[], Any]) -> Any:
        """Collective: what `action` gives on rank 0; an error there is raised on every rank."""
        return self.agree(step, lambda: action() if self.rank == 0 else None)[0]

    def _gather(self, mine: object) -> list[Any]:
        if self.group is None:
            return [mine]
        everyones: list[Any] = [None] * self.size
        dist.all_gather_object(everyones, mine, group=self.group)
        return everyones

    def _sentence(self, step: str, failures: list[tuple[int, str]]) -> str:
        if self.group is None:
            return f"{step}: {failures[0][1]}"
        rank, said = failures[0]
        others = [str(other) for other, _ in failures[1:]]
        also = f" (and on {'ranks' if len(others) > 1 else 'rank'} {', '.join(others)})" if others else ""
        return f"{step}, on rank {rank}{also}: {said}"


def ranks_of(group: dist.ProcessGroup | None) -> Ranks:
    """The ranks of `group`, by default of the default group; this process alone when there is none."""
    if group is None:
        if not (dist.is_available() and dist.is_initialized()):
            return Ranks(None, 0, 1)
        group = dist.group.WORLD
    return Ranks(group, dist.get_rank(group), dist.get_world_size(group))


_async_groups: WeakKeyDictionary[dist.ProcessGroup, dist.ProcessGroup] = WeakKeyDictionary()


def async_group_of(ranks: Ranks) -> Ranks:
    """The same ranks in a group for the thread of a save: a group takes collectives from one thread at a time.

    Collective at the first call for a group; the new group is kept as long as that one.
    """
    group = ranks.group
    if group is None:
        return ranks
    if group not in _async_groups:
        _async_groups[group] = another_group(group)
    return ranks_of(_async_groups[group])
