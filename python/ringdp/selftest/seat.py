"""One rank's place in a group: whom it sits with, everyone's inputs, and in which form it makes its calls."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

import ringdp
from ringdp.selftest.inputs import values

# What was looked at, what it holds, what it must hold.
Check = tuple[str, Tensor, Tensor]


@dataclass(frozen=True)
class Seat:
    """`rank` and `size` are the group's; `group` None is the default group; `label` chooses the inputs.

    `shared`: this rank's inputs lie in shared memory, see `ringdp.empty`; other ranks may do otherwise.
    """

    rank: int
    size: int
    group: dist.ProcessGroup | None = None
    label: str = ""
    asynchronous: bool = False
    shared: bool = False

    def inputs(self, count: int, dtype: torch.dtype, part: str = "") -> list[Tensor]:
        """Everyone's inputs, by rank."""
        return [values(self.label + part, rank, count, dtype) for rank in range(self.size)]

    def copy_of(self, tensor: Tensor) -> Tensor:
        """What a call may be given for `tensor`."""
        if not self.shared:
            return tensor.clone()
        return ringdp.empty(tensor.shape, dtype=tensor.dtype, group=self.group, fallback=True).copy_(tensor)

    def options(self) -> dict[str, Any]:
        """Keyword arguments of every collective."""
        return {"group": self.group, "async_op": self.asynchronous}

    def wait(self, work: Any) -> None:
        """Ends an asynchronous call; None is what a synchronous one returned."""
        if work is not None:
            work.wait()


# (seat, dtype, reduce op or "", count): makes the calls and yields what to check.
Call = Callable[[Seat, torch.dtype, str, int], Iterator[Check]]
