"""Records what one rank does with micro-batches (leaves): those of each step, their seeds, and their samples.

Records by kind: leaves (the settings of a ringdp.elastic.Leaves), leaf_step (at the end of each; `leaves`: number, seed
and share of each that this rank has run). A share is (leaves, epoch, step, leaf, whether a loader has drawn it). All
ranks have as many records of steps, so that those of one step are at one place: a rank without a leaf has them, too.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from ringdp.tools.feed.recorder import Sink, innermost, is_leaves, settings_of

_STEPS = 100_000  # a job may run for months
_PENDING = 4096  # shares that are known and not used


class LeafRecorder:
    """The recorder of one process."""

    def __init__(self, sink: Sink) -> None:
        self.micro_batches: int | None = None  # of a step; not known with wrappers that differ
        self._sink = sink
        self._settings: list[dict[str, Any]] = []
        self._pending: deque[tuple[Any, ...]] = deque(maxlen=_PENDING)
        self._latest: int | None = None  # the Leaves of the latest share
        self._run: list[tuple[Any, ...]] = []
        self._step: int | None = None
        self._steps = 0

    def asked(self, leaves: Any, epoch: int, step: int, leaf: int) -> None:
        """The script has asked which samples a micro-batch has."""
        self._pending.append((self._number_of(leaves), epoch, step, leaf, False))

    def drawn(self, loader: Any, number: int) -> None:
        """A loader has handed out a batch, the number-th of its epoch."""
        leaves = innermost(loader)
        if is_leaves(leaves) and (mine := leaves.mine()):
            step, place = divmod(number, len(mine))
            self._pending.append((self._number_of(leaves), leaves.epoch, step, mine[place], True))

    def end(self, leaf: Any) -> None:
        """A micro-batch has been run (elastic/leaf.py)."""
        self._step = leaf.step
        self._run.append((leaf.index, leaf.seed, self._share_of(leaf.index)))

    def over(self) -> None:
        """What has been run is averaged now, before anything can be found wrong with it."""
        if self._steps < _STEPS:
            self._sink({"kind": "leaf_step", "step": self._step, "of": self.micro_batches, "leaves": self._run})
        self._steps += 1
        if used := [share for _, _, share in self._run if share is not None]:  # what is older was not to be run
            latest = max(used)
            kept = (share for share in self._pending if share[0] != latest[0] or share[1:3] > latest[1:3])
            self._pending = deque(kept, maxlen=_PENDING)
        self._run, self._step = [], None

    def _share_of(self, leaf: int) -> tuple[Any, ...] | None:
        """The oldest that is its own, of the Leaves that the leaf before had; else the only one; None: not known."""
        own = [share for share in self._pending if share[3] == leaf]
        if not own and len(self._pending) != 1:
            return None
        share = min(own or self._pending, key=lambda share: share[0] != self._latest)  # of equal ones the first
        self._latest = share[0]
        self._pending.remove(share)
        return share

    def _number_of(self, leaves: Any) -> int:
        settings = settings_of(leaves)
        if settings not in self._settings:
            self._settings.append(settings)
            self._sink({"kind": "leaves", "number": len(self._settings) - 1, **settings})
        return self._settings.index(settings)
