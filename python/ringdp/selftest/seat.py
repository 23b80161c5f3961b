"""One rank's place in a group: whom it sits with, everyone's inputs, and whether calls are asynchronous."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ringdp.selftest.inputs import values

# What was looked at, what it holds, what it must hold.
Check = tuple[str, Tensor, Tensor]


@dataclass(frozen=True)
class Seat:
    """`rank` and `size` are the group's; `group` None is the default group; `label` chooses the inputs."""

    rank: int
    size: int
    group: dist.ProcessGroup | None = None
    label: str = ""
    asynchronous: bool = False

    def inputs(self, count: int, dtype: torch.dtype, part: str = "") -> list[Tensor]:
        """Everyone's inputs, by rank."""
        return [values(self.label + part, rank, count, dtype) for rank in range(self.size)]

    def options(self) -> dict[str, Any]:
        """Keyword arguments of every collective."""
        return {"group": self.group, "async_op": self.asynchronous}

    def wait(self, work: Any) -> None:
        """Ends an asynchronous call; None is what a synchronous one returned."""
        if work is not None:
            work.wait()


# (seat, dtype, reduce op or "", count): makes the calls and yields what to check.
Call = Callable[[Seat, torch.dtype, str, int], Iterator[Check]]
