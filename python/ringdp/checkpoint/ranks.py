"""Runs a step on all ranks: either every rank gets the results of all, or every rank raises the same error.

Without a process group there is one rank, and nothing is exchanged.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import torch.distributed as dist

from ringdp.checkpoint.piece import CheckpointError
from ringdp.gather_objects import gather_objects
from ringdp.same_ranks import another_group

Result = TypeVar("Result")


@dataclass(frozen=True)
class _Failure:
    """The error of a rank, as text, because not every exception can be pickled."""

    text: str


@dataclass(frozen=True)
class Ranks:
    """The ranks that save or load together; `group` is None for a single process."""

    group: dist.ProcessGroup | None
    rank: int
    size: int

    def agree(self, step: str, action: Callable[[], Any]) -> list[Any]:
        """Collective: the results of `action` on every rank, in rank order.

        If it fails on any rank, every rank raises a CheckpointError that names that rank and the step.
        """
        cause: Exception | None = None
        try:
            mine = action()
        except Exception as error:
            cause = error
            # A CheckpointError explains itself; other types are part of the explanation.
            mine = _Failure(str(error) if isinstance(error, CheckpointError) else f"{type(error).__name__}: {error}")
        by_rank = self._gather(mine)
        failures = [(rank, its.text) for rank, its in enumerate(by_rank) if isinstance(its, _Failure)]
        if failures:
            raise CheckpointError(self._sentence(step, failures)) from cause
        return by_rank

    def keep(self, step: str, action: Callable[[], Result]) -> Result:
        """Collective: as agree(), but returns only this rank's result, which is not sent and may be large."""
        own: list[Result] = []
        self.agree(step, lambda: own.append(action()))
        return own[0]

    def on_first(self, step: str, action: Callable[[], Any]) -> Any:
        """Collective: the result of `action` on rank 0; its error is raised on every rank."""
        return self.agree(step, lambda: action() if self.rank == 0 else None)[0]

    def _gather(self, mine: object) -> list[Any]:
        if self.group is None:
            return [mine]
        return gather_objects(mine, self.group)

    def _sentence(self, step: str, failures: list[tuple[int, str]]) -> str:
        if self.group is None:
            return f"{step}: {failures[0][1]}"
        rank, said = failures[0]
        others = [str(other) for other, _ in failures[1:]]
        also = f" (and on {'ranks' if len(others) > 1 else 'rank'} {', '.join(others)})" if others else ""
        return f"{step}, on rank {rank}{also}: {said}"


def ranks_of(group: dist.ProcessGroup | None) -> Ranks:
    """The ranks of `group`, or of the default group; a single process if there is none."""
    if group is None:
        if not (dist.is_available() and dist.is_initialized()):
            return Ranks(None, 0, 1)
        group = dist.group.WORLD
    return Ranks(group, dist.get_rank(group), dist.get_world_size(group))


_async_groups: WeakKeyDictionary[dist.ProcessGroup, dist.ProcessGroup] = WeakKeyDictionary()


def async_group_of(ranks: Ranks) -> Ranks:
    """The same ranks in a group for the background thread, as a group serves one thread at a time.

    Collective at the first call for a group; the new group is kept as long as that group.
    """
    group = ranks.group
    if group is None:
        return ranks
    if group not in _async_groups:
        _async_groups[group] = another_group(group)
    return ranks_of(_async_groups[group])
