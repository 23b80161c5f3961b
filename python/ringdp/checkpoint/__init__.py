"""Checkpoints of one logical format: saved by any number of ranks in any layout, loaded by any other, bit for bit.

    ringdp.checkpoint.save("run/checkpoints", model, optimizer, extra={"step": step})
    extra = ringdp.checkpoint.load("run/checkpoints", model, optimizer).extra

Tensors are keyed by kind and parameter name and stored in flat pieces, through torch.distributed.checkpoint.
"""

from __future__ import annotations

from ringdp.checkpoint.background import Pending
from ringdp.checkpoint.holder import HasHolder, Holder
from ringdp.checkpoint.loading import Contents, Loaded, load, read
from ringdp.checkpoint.piece import CheckpointError, Piece, Spec, Stretch
from ringdp.checkpoint.saving import save, save_async

__all__ = [
    "CheckpointError",
    "Contents",
    "HasHolder",
    "Holder",
    "Loaded",
    "Pending",
    "Piece",
    "Spec",
    "Stretch",
    "load",
    "read",
    "save",
    "save_async",
]
