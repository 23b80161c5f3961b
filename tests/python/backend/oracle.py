"""Serial references for collectives, and inputs that every rank can make for every other."""

from __future__ import annotations

import zlib
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

FLOATS = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
INTEGERS = [
    torch.uint8,
    torch.int8,
    torch.uint16,
    torch.int16,
    torch.uint32,
    torch.int32,
    torch.uint64,
    torch.int64,
]
OPS = ["SUM", "AVG", "MIN", "MAX", "PRODUCT"]
_FOLDS: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "SUM": np.add,
    "AVG": np.add,
    "MIN": np.minimum,
    "MAX": np.maximum,
    "PRODUCT": np.multiply,
}


def ops_of(dtype: torch.dtype) -> list[str]:
    return OPS if dtype.is_floating_point else [op for op in OPS if op != "AVG"]


def values(label: str, rank: int, count: int, dtype: torch.dtype) -> Tensor:
    """This rank's input: any value of an integer type; floats of mixed size and sign, so that order counts."""
    source = np.random.default_rng(zlib.crc32(f"{label} {rank} {count}".encode()))
    if not dtype.is_floating_point:
        limits = torch.iinfo(dtype)
        name = str(dtype).removeprefix("torch.")
        return torch.from_numpy(source.integers(limits.min, limits.max, count, dtype=name, endpoint=True))
    numbers = source.standard_normal(count) * 2.0 ** source.integers(-4, 4, count)
    return torch.from_numpy(numbers).to(dtype)


def small_integers(label: str, rank: int, count: int, dtype: torch.dtype) -> Tensor:
    """Inputs whose sums are exact in every order."""
    source = np.random.default_rng(zlib.crc32(f"{label} {rank} {count}".encode()))
    return torch.from_numpy(source.integers(0, 8, count)).to(dtype)


def fold(inputs: list[Tensor], op: str) -> Tensor:
    """The reduction in rank order; 16-bit floats folded in fp32 and rounded once."""
    dtype = inputs[0].dtype
    narrow = dtype in (torch.float16, torch.bfloat16)
    arrays = [(tensor.float() if narrow else tensor).numpy() for tensor in inputs]
    total = arrays[0].copy()
    for array in arrays[1:]:
        total = _FOLDS[op](total, array)
    if op == "AVG":
        total = total / total.dtype.type(len(inputs))
    return torch.from_numpy(total).to(dtype)


def same_bits(a: Tensor, b: Tensor) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and bytes_of(a) == bytes_of(b)


def bytes_of(tensor: Tensor) -> bytes:
    return (tensor.view(torch.int16) if tensor.dtype == torch.bfloat16 else tensor).numpy().tobytes()
