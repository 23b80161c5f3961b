"""What the trainings that race are called."""

from __future__ import annotations

RIVALS = {1: "DDP + ZeroRedundancyOptimizer", 2: "FSDP2, parameters kept", 3: "FSDP2"}

PREFETCH_OFF = "ringdp stage 3, prefetch off"


def ours(stage: int) -> str:
    """ringdp's at a stage."""
    return f"ringdp stage {stage}"


def in_forward(stage: int) -> str:
    """The same, with gathers that outlive the step: of stages 1 and 2."""
    return f"ringdp stage {stage}, gather=forward"
