"""What a training run has seen so far, step by step: plain numbers, which a checkpoint or a JSON file can hold."""

from __future__ import annotations

from dataclasses import dataclass, field

Phases = tuple[float, float, float]


@dataclass
class History:
    """losses: one per step. validation: (steps done, loss). step_seconds: of each step, without what was left out.

    phases: of each step the seconds of its last forward pass, of its backward pass, and of waiting for gradients after
    it, on this rank; None where no gradients were exchanged, or where the wrapper keeps no times.
    """

    losses: list[float] = field(default_factory=list)
    validation: list[tuple[int, float]] = field(default_factory=list)
    step_seconds: list[float] = field(default_factory=list)
    phases: list[Phases | None] = field(default_factory=list)
