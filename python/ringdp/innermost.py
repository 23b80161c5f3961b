"""Trainers put optimizers into classes of their own; what users hand over may be one of these."""

from __future__ import annotations

from torch.optim import Optimizer


def innermost(optimizer: Optimizer) -> Optimizer:
    """The optimizer whose step() is called in the end: inside Accelerate's or Lightning's, or it itself."""
    while isinstance(inner := getattr(optimizer, "optimizer", None), Optimizer):
        optimizer = inner
    return optimizer
