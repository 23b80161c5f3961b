"""What is measured on one GPU: an operation, a number of ranks that share it, and the bytes of a rank's tensor."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

ALL_REDUCE, ZERO_STEP, DDP_STEP = "all_reduce", "zero_step", "ddp_step"
ELEMENT_BYTES = 4  # float32
PERIOD = 251  # after which the inputs' values repeat: small integers, so that every sum is exact in any order


@dataclass(frozen=True)
class Cell:
    """`size`: bytes of one rank's float32 tensor; for a zero_step or a ddp_step of its parameters."""

    op: str
    world: int
    size: int

    @property
    def count(self) -> int:
        """Elements of a rank's tensor."""
        return self.size // ELEMENT_BYTES

    @property
    def least_bytes(self) -> int:
        """What must at least cross the memory of the one device: every input read once, every output written once.

        An all_reduce, or that of a ddp_step's gradients, reads and writes N tensors. A zero_step reads N gradients, the
        parameters and two moments once, and writes N times the parameters and the moments.
        """
        if self.op == ZERO_STEP:
            return (2 * self.world + 5) * self.size
        return 2 * self.world * self.size

    def as_json(self) -> dict[str, Any]:
        """For an order to a rank."""
        return asdict(self)
