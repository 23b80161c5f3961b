"""Bytes a backend has moved, against the textbook formulas."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist

# zero_stage -> how often a rank sends (N-1)/N of the bytes of all gradients or parameters in a step. Stage 1 leaves
# every rank the whole mean, so it all-reduces before it gathers.
WIRE_PASSES = {0: 2, 1: 3, 2: 2, 3: 3}


@dataclass(frozen=True)
class Traffic:
    """Bytes of `steps` steps, over all ranks. gradient_bytes: S, what one rank all-reduces in one step.

    in_place: buckets lie in shared memory where there is some, so nothing is copied there.
    """

    world: int
    steps: int
    gradient_bytes: int
    wire: int
    memory: int
    in_place: bool = False
    zero_stage: int = 0

    @property
    def in_memory(self) -> bool:
        """Whether gradients went through memory that all ranks map: then there is nothing to send."""
        return self.wire == 0 and self.memory > 0

    @property
    def wire_formula(self) -> int:
        """2(N-1)/N S from each rank over links, whichever way round, 3(N-1)/N S at stages 1 and 3; 0 in memory."""
        passes = 0 if self.in_memory else WIRE_PASSES[self.zero_stage]
        return passes * (self.world - 1) * self.gradient_bytes * self.steps

    @property
    def memory_floor(self) -> int:
        """2 N S: every gradient byte read once and every mean written once."""
        return 2 * self.world * self.gradient_bytes * self.steps

    @property
    def memory_formula(self) -> int:
        """2 N S in place; (5N-2) S where gradients are copied into the arena and means out of it.

        Both copies read and write (N-1) S; the fold reads N S and writes S twice, to the arena and its owner.
        """
        if self.in_place:
            return self.memory_floor
        return (5 * self.world - 2) * self.gradient_bytes * self.steps


class Meter:
    """Adds up what the default group's backend counts between start() and stop(), if it counts at all."""

    def __init__(self) -> None:
        backend = dist.distributed_c10d._get_default_group()._get_backend(torch.device("cpu"))
        self._counters = getattr(backend, "counters", None)
        self._sums = torch.zeros(2, dtype=torch.int64)

    def start(self) -> None:
        """Begin of a stretch that counts."""
        self._sums -= self._now()

    def stop(self) -> None:
        """End of that stretch."""
        self._sums += self._now()

    def total(self, steps: int, gradient_bytes: int, in_place: bool, zero_stage: int = 0) -> Traffic | None:
        """Collective. All ranks' bytes since the first start(), None where the backend has no counters."""
        if self._counters is None:
            return None
        sums = self._sums.clone()
        dist.all_reduce(sums)
        return Traffic(dist.get_world_size(), steps, gradient_bytes, int(sums[0]), int(sums[1]), in_place, zero_stage)

    def _now(self) -> torch.Tensor:
        if self._counters is None:
            return torch.zeros(2, dtype=torch.int64)
        counted = self._counters()
        memory = counted["memory_bytes_read"] + counted["memory_bytes_written"]
        return torch.tensor([counted["wire_bytes_sent"], memory])
