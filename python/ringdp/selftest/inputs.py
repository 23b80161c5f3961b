"""Inputs that every rank can make for every other: a function of label, rank, count and dtype alone."""

from __future__ import annotations

import zlib
from functools import lru_cache

import torch
from torch import Tensor

_KEPT = 256


@lru_cache(maxsize=_KEPT)
def values(label: str, rank: int, count: int, dtype: torch.dtype) -> Tensor:
    """This rank's input, shared: clone it before a call that writes.

    Any bits for integers and 8-bit floats; floats of mixed size and sign, so that the order of a sum counts.
    """
    source = torch.Generator().manual_seed(zlib.crc32(f"{label} {rank} {count}".encode()))
    if dtype == torch.bool:
        return torch.randint(0, 2, (count,), generator=source).bool()
    if dtype.is_complex:
        return torch.view_as_complex(_floats((count, 2), source).to(dtype.to_real()))
    if dtype.is_floating_point and dtype.itemsize > 1:
        return _floats((count,), source).to(dtype)
    return torch.randint(0, 256, (count * dtype.itemsize,), generator=source, dtype=torch.uint8).view(dtype)


def _floats(shape: tuple[int, ...], source: torch.Generator) -> Tensor:
    exponents = torch.randint(-4, 4, shape, generator=source)
    return torch.randn(shape, generator=source, dtype=torch.float64) * 2.0**exponents
