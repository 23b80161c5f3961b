"""ZeRO's stages: names of trainings, and by formula bytes per parameter on a rank and elements that it sends per step.

Memory of AdamW training (Rajbhandari et al., ZeRO, 2020): float32 has 4 bytes of parameter, 4 of gradient, 8 of state;
bfloat16 with a float32 master 2, 2 and 12. A stage divides state, then gradients, then parameters by the ranks.
"""

from __future__ import annotations

FP32, BF16 = "fp32", "bf16"
BYTES = {FP32: (4, 4, 8), BF16: (2, 2, 12)}  # of parameter, gradient, state with master
_WHOLE_FROM = (1, 2, 3)  # stage that divides state, gradients, parameters


def bytes_per_parameter(stage: int, ranks: int, dtype: str) -> float:
    """On each rank, between the backward pass and the step."""
    parameter, gradient, state = BYTES[dtype]
    divided = zip((state, gradient, parameter), _WHOLE_FROM, strict=True)
    return sum(size / ranks if stage >= first else size for size, first in divided)


def passes_per_step(stage: int, micro_batches: int = 1) -> int:
    """How often a rank sends (N-1)/N of all parameters' elements, when every micro-batch is averaged.

    An all-reduce is two: a reduce-scatter and an all-gather. Stage 1 leaves every rank the whole mean, as .grad is
    promised there, so it all-reduces and gathers parameters: 3, where sharded gradients (stage 2) need 2. Stage 3
    gathers parameters for forward and for backward.
    """
    return {0: 2 * micro_batches, 1: 2 * micro_batches + 1, 2: micro_batches + 1, 3: 3 * micro_batches}[stage]


RIVALS = {1: "DDP + ZeroRedundancyOptimizer", 2: "FSDP2, parameters kept", 3: "FSDP2"}

PREFETCH_OFF = "ringdp stage 3, prefetch off"


def ours(stage: int) -> str:
    """ringdp's at a stage."""
    return f"ringdp stage {stage}"


def in_forward(stage: int) -> str:
    """The same, with gathers that outlive the step: of stages 1 and 2."""
    return f"ringdp stage {stage}, gather=forward"
