"""Stage 3 with micro_batches: ranks without a leaf take part in the gathers of the ranks that run one.

Every pass inside a leaf begins with a vote; a rank that ends the step votes, too, and with shard_leaves one that ends a
leaf. If some have no pass, the others announce to these followers every unit before they gather it, and at the end the
order in which they have used units, so that all ranks expect, and prefetch, the same in the next pass. If all have one,
nothing more is said.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
import torch.distributed as dist

_ENDED, _FAILED = -1, -2
_NOTHING = -3  # what followers say


class Followers:
    """What ranks tell each other about passes; all methods of one side match those of the other, in order."""

    def __init__(self, group: dist.ProcessGroup, device: torch.device) -> None:
        self._group, self._device = group, device
        self._listening = False  # some ranks follow the running pass of this rank
        self.ended = False  # whether the pass that was followed last has ended; else it has failed
        self.in_leaves = 0  # see passes()

    def begin_pass(self, *, backward: bool) -> None:
        """Before a pass in a leaf of this rank."""
        self.abandon_pass()
        if self._group.size() > 1:
            active, backwards, _ = self._sum(1, int(backward), 0)
            _check_alike(active, backwards)
            self._listening = active < self._group.size()

    def announce(self, unit: int) -> None:
        """Before a unit is gathered."""
        if self._listening:
            self._most(unit)

    def end_pass(self, order: Sequence[int]) -> None:
        """When the units of this pass were used in this order."""
        if self._listening:
            self._most(_ENDED)
            self._most(len(order))
            self._most(*order)
        self._listening = False

    def abandon_pass(self) -> None:
        """If the latest pass has not ended, it has failed."""
        if self._listening:
            self._most(_FAILED)
        self._listening = False

    def passes(self, *, in_leaf: bool) -> Iterator[bool]:
        """On a rank without a pass: whether it is a backward pass, for each pass of the others, until none has one.

        Then `in_leaves` is how many ranks have passed in_leaf=True.
        """
        self.abandon_pass()
        while True:
            active, backward, self.in_leaves = self._sum(0, 0, int(in_leaf))
            if active == 0:
                return
            _check_alike(active, backward)
            yield backward > 0

    def units(self) -> Iterator[int]:
        """The units of such a pass, before they are gathered; order() follows if `ended`."""
        while (unit := self._most(_NOTHING)[0]) >= 0:
            yield unit
        self.ended = unit == _ENDED

    def order(self) -> list[int]:
        """See end_pass()."""
        (length,) = self._most(_NOTHING)
        return self._most(*[_NOTHING] * length)

    def _sum(self, *numbers: int) -> list[int]:
        return self._reduced(numbers, dist.ReduceOp.SUM)

    def _most(self, *numbers: int) -> list[int]:
        return self._reduced(numbers, dist.ReduceOp.MAX)

    def _reduced(self, numbers: Sequence[int], op: dist.ReduceOp) -> list[int]:
        if not numbers:
            return []
        if self._group.size() == 1:
            return list(numbers)
        tensor = torch.tensor(numbers, dtype=torch.int64, device=self._device)
        dist.all_reduce(tensor, op=op, group=self._group)
        return tensor.tolist()


def _check_alike(active: int, backwards: int) -> None:
    """All ranks see the same two numbers."""
    if 0 < backwards < active:
        raise RuntimeError(
            f"DistributedDataParallel: of {active} ranks that run a leaf, {backwards} begin a backward pass and the "
            "others a forward pass, which zero_stage=3 does not allow: in each leaf every forward pass has its "
            "backward pass, and a leaf that fails must fail on all ranks that run one"
        )
