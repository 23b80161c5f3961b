"""Whether two tensors have the same bits, and if not, where they first differ."""

from __future__ import annotations

import torch
from torch import Tensor


def difference(got: Tensor, want: Tensor) -> str:
    """Empty when type, shape and bits are equal; else the first difference in words."""
    if got.dtype != want.dtype or got.shape != want.shape:
        return f"expected {want.dtype} {tuple(want.shape)}, got {got.dtype} {tuple(got.shape)}"
    differing = (_rows(got) != _rows(want)).any(dim=1).nonzero()
    if not len(differing):
        return ""
    at = int(differing[0])
    expected, found = (tensor.flatten()[at].item() for tensor in (want, got))
    return f"element {at} of {got.numel()}: expected {expected!r}, got {found!r} ({len(differing)} differ)"


def _rows(tensor: Tensor) -> Tensor:
    """The bytes of a tensor, one row per element."""
    return tensor.contiguous().view(torch.uint8).reshape(tensor.numel(), tensor.dtype.itemsize)
