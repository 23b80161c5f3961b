"""What a watch has measured, as sums: for Prometheus, and what the watch itself costs."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from itertools import count

import torch

from ringdp import _native

_C = _native.load()
# Seconds: upper ends of a histogram's bins.
BINS = (0.005, 0.01, 0.02, 0.035, 0.05, 0.075, 0.1, 0.2, 0.35, 0.5, 0.75, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
_ordinals = count()


class Measures:
    """Of one watch. `in_steps` is written by the training thread, the rest by that of the watch; read by any.

    group: its name. ordinal: how many watches the process has begun before. step_counts: steps by bin.
    looked_at: steps of which there are the next three sums. compared: blocks of parameters, or parts of them that came
    with a pass. in_steps, in_passes, in_thread: seconds that the watch has computed in optimizers' steps, in backward
    passes and in its own thread, which other processes do not lengthen.
    """

    def __init__(self, group: str, rank: int, model: torch.nn.Module) -> None:
        self.group, self.rank, self.ordinal = group, rank, next(_ordinals)
        self.step_counts = [0] * (len(BINS) + 1)
        self.step_seconds = 0.0
        self.looked_at = 0
        self.exposed = self.communication = 0.0
        self.gradient_bytes = 0
        self._bytes = sum(p.numel() * p.element_size() for p in model.parameters() if p.requires_grad)
        self.compared = 0
        self.in_steps = self.in_passes = self.in_thread = 0.0
        self.findings: Counter[str] = Counter()

    @property
    def in_training(self) -> float:
        """Seconds, of the thread that trains."""
        return self.in_steps + self.in_passes

    def add_step(self, seconds: float) -> None:
        """How long one took."""
        self.step_counts[bisect_left(BINS, seconds)] += 1
        self.step_seconds += seconds

    def add_rows(self, rows: bytes) -> None:
        """Those that were looked at, packed."""
        looked_at, exposed, communication = _C.StepRows.sums_of(rows)
        self.looked_at += looked_at
        self.exposed += exposed
        self.communication += communication
        self.gradient_bytes += looked_at * self._bytes
