"""What the probes of one rank share: where records go, replaced functions, and which step it is."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ringdp.tools.attach.patches import Patches

Sink = Callable[[dict[str, Any]], None]


@dataclass
class ProbeContext:
    """`step` counts optimizer steps that had a backward pass, from 0. The sums are those of the step being made.

    data, called, buffers: seconds in loaders, in collectives that the script itself has called, and in the wrapper's
    broadcasts of buffers before forward passes. backwards: passes.
    """

    write: Sink
    patches: Patches = field(default_factory=Patches)
    step: int = 0
    began: float = field(default_factory=time.perf_counter)
    data: float = 0.0
    called: float = 0.0
    buffers: float = 0.0
    samples: int = 0
    backwards: int = 0
    before_step: list[Callable[[], object]] = field(default_factory=list)
    after_backward: list[Callable[[], object]] = field(default_factory=list)

    def next_step(self) -> None:
        """The optimizer has stepped."""
        self.step += 1
        self.began = time.perf_counter()
        self.data = self.called = self.buffers = 0.0
        self.samples = self.backwards = 0
