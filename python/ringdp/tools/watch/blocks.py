"""Drift by sampling, where no collective of the step carries checksums (samples.py): ranks exchange them.

Every rank takes checksums of the same few blocks of the parameters, the next ones at each look. Which blocks follows
from the number of the look, so ranks need not agree on anything; one that takes fewer, or takes part in fewer looks,
takes some of the others'.
"""

from __future__ import annotations

import weakref
from bisect import bisect_right
from itertools import accumulate
from typing import Any

import torch
from torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook import PostLocalSGDState
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.optim import PostLocalSGDOptimizer, ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

from ringdp import _native

STEPPED_ALONE = "this rank has stepped with gradients that were not averaged (no_sync)"
BLOCK_BYTES = 1 << 18
LANES = 32  # most blocks of a look
_LANE_OF = [int(f"{number:05b}"[::-1], 2) for number in range(LANES)]  # so that the first 2**n are evenly spread
_C = _native.load()


def why_not_compared(model: torch.nn.Module) -> str:
    """Why no rank is known to hold a replica of the model; "" where all do."""
    if not isinstance(model, DistributedDataParallel):
        return "the model is not in a DistributedDataParallel, so ranks may hold different parts of it"
    if getattr(model, "zero_stage", 0) == 3:
        return "zero_stage=3 shards parameters"
    if any(isinstance(module, FullyShardedDataParallel) for module in model.modules()):
        return "FullyShardedDataParallel shards parameters"
    if any(hasattr(parameter, "_in_backward_optimizers") for parameter in model.parameters()):
        return "optimizers step inside the backward pass"
    return ""


def why_no_longer(model: DistributedDataParallel, optimizer: torch.optim.Optimizer) -> str:
    """Why the ranks' parameters may differ in this step; "" where they must be equal."""
    if not model.require_forward_param_sync:
        return STEPPED_ALONE
    if isinstance(optimizer, PostLocalSGDOptimizer) or any(
        isinstance(state, PostLocalSGDState) for _, state in model._comm_hooks
    ):
        return "post-local SGD lets ranks differ between averages"
    # As with optimizers in the backward pass, some parameters have been stepped and others not.
    if getattr(optimizer, "steps_in_backward", False) or (
        isinstance(optimizer, ZeroRedundancyOptimizer) and optimizer._overlap_with_ddp
    ):
        return f"{type(optimizer).__name__} steps inside the backward pass (overlap_with_ddp)"
    return ""


def replicated(model: DistributedDataParallel) -> list[tuple[str, torch.nn.Parameter]]:
    """The parameters that are compared."""
    left_out = set(model.parameters_to_ignore)
    named = [(name, p) for name, p in model.module.named_parameters() if name not in left_out]
    plain = [(name, p) for name, p in named if type(p.data) is torch.Tensor and p.layout is torch.strided]
    return [(name, p) for name, p in plain if p.is_contiguous() and p.numel() and not p.is_meta]


class Blocks:
    """The parameters of one model, in blocks. They are not kept alive."""

    def __init__(self, model: DistributedDataParallel) -> None:
        plain = replicated(model)
        self.names = [name for name, _ in plain]
        self._parameters = [weakref.ref(p) for _, p in plain]
        self._elements = [max(1, BLOCK_BYTES // p.element_size()) for _, p in plain]
        self._lengths = [p.numel() for _, p in plain]
        counts = [-(-length // size) for length, size in zip(self._lengths, self._elements, strict=True)]
        self._ends = list(accumulate(counts))

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def chosen(self, look: int, count: int) -> list[int]:
        """Which blocks are looked at: all in turn, with `count` 2**n at every look or with 1 at every 2**n-th."""
        places = len(self) | 1  # odd, so that each of LANES steps through them comes to other ones
        chosen = ((look * LANES + lane) % places for lane in _LANE_OF[: min(count, LANES)])
        return [block for block in dict.fromkeys(chosen) if block < len(self)]

    def place(self, block: int) -> tuple[int, int, int]:
        """Which parameter it is of, and its elements from where to where."""
        index = bisect_right(self._ends, block)
        begin = (block - (self._ends[index - 1] if index else 0)) * self._elements[index]
        return index, begin, min(begin + self._elements[index], self._lengths[index])

    def describe(self, block: int) -> str:
        """Elements 0 to 65,535 of layer.weight."""
        index, begin, end = self.place(block)
        return f"elements {begin:,} to {end - 1:,} of {self.names[index]}"

    def sums(self, look: int, count: int) -> list[tuple[int, Any]]:
        """(block, checksum) of those that are chosen; on a device checksums are tensors of one number.

        Nothing waits for the device.
        """
        return [(block, self._sum(*self.place(block))) for block in self.chosen(look, count)]

    def _sum(self, index: int, begin: int, end: int) -> Any:
        parameter = self._parameters[index]()
        if parameter is None:
            raise ReferenceError("the model is gone")
        block = parameter.detach().view(-1)[begin:end]
        if block.device.type == "cpu":
            return _C.checksum(block)
        return block.view(torch.uint8).sum(dtype=torch.int64)


def as_number(checksum: Any) -> int:
    """Of sums(), later: waits for the device. Never 0, which stands for a rank without an opinion."""
    return int(checksum.item()) + 1 if isinstance(checksum, torch.Tensor) else int(checksum)
