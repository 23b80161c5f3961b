"""Inputs whose sums are exact in any order, and how many elements of a result are wrong; on the GPU."""

from __future__ import annotations

import torch

from devices.cell import PERIOD


def fill(tensor: torch.Tensor, rank: int) -> None:
    """This rank's input: small integers that differ from rank to rank."""
    tensor.copy_((torch.arange(tensor.numel(), device=tensor.device) + rank) % PERIOD)


def wrong_in_sum(tensor: torch.Tensor, world: int) -> int:
    """Elements that are not the sum over all ranks' inputs."""
    index = torch.arange(tensor.numel(), device=tensor.device)
    right = torch.zeros_like(tensor)
    for rank in range(world):
        right += (index + rank) % PERIOD
    return int((tensor != right).sum())
