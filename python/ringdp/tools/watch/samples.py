"""Drift by sampling, where ringdp's wrapper reduces on the CPU: a part of the parameters in each backward pass.

Its checksum travels with a bucket (csrc/reducer/parameter_sample.h), so a difference is known when the pass ends.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import NamedTuple

from torch.nn.parallel import DistributedDataParallel

from ringdp.tools.watch.blocks import replicated
from ringdp.tools.watch.effort import Effort

_PART = 0.6  # of the budget


class Drift(NamedTuple):
    """number: of the step since the watch began. ranks: of the group, as _C.odd_ranks() returns them."""

    number: int
    ranks: Sequence[int]
    has_majority: bool
    where: str


class Samples:
    """Of one model. is_carried: whether buckets carry the checksums; otherwise nothing is compared.

    stepped_alone: whether this rank has stepped with gradients of its own, after which nothing is compared any more.
    compared: passes. seconds: what that took.
    """

    def __init__(self, model: DistributedDataParallel, budget: float) -> None:
        named = replicated(model)
        self._names = [name for name, _ in named]
        self._reducer = weakref.ref(model.reducer)
        self._effort = Effort(_PART * budget, blocks=1)
        self._began = model.reducer.passes()
        self.is_carried = self.stepped_alone = False
        self.compared, self.seconds = 0, 0.0
        if all(parameter.device.type == "cpu" for _, parameter in named):
            model.reducer.sample_parameters([parameter for _, parameter in named])
            self.take()

    def has_found(self) -> bool:
        """Whether there is something for take()."""
        reducer = self._reducer()
        return reducer is not None and reducer.has_found()

    def take(self) -> list[Drift]:
        """What has been found since the last call."""
        reducer = self._reducer()
        if reducer is None:
            return []
        self.is_carried, self.stepped_alone, self.compared, ns, found = reducer.take_sampled()
        self.seconds = ns * 1e-9
        return [
            Drift(number - self._began, ranks, majority, self._where(*places))
            for number, ranks, majority, *places in found
        ]

    def adapt(self, passed: float) -> None:
        """To what it has cost of so many seconds of training in all."""
        self._effort.adapt(self.seconds, passed)
        if (reducer := self._reducer()) is not None:
            reducer.set_sample_stride(self._effort.stride)

    def close(self) -> None:
        """Takes no more of them."""
        if (reducer := self._reducer()) is not None:
            reducer.sample_parameters([])

    def _where(self, first: int, first_element: int, last: int, last_element: int) -> str:
        if first == last:
            return f"elements {first_element:,} to {last_element:,} of {self._names[first]}"
        return (
            f"the parameters from element {first_element:,} of {self._names[first]} to element {last_element:,} of "
            f"{self._names[last]}"
        )
