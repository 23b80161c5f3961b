"""The expected results of calls: valid element types and operations, inputs, serial references, comparison.

A reference is computed in one process from the inputs of all ranks, in rank order. 16-bit floats are folded in float32;
AVG divides once, whole numbers toward zero; there is one rounding, at the end.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from functools import lru_cache

import torch
import torch.distributed as dist
from torch import Tensor

# name of torch -> the column it is shown in; the 8-bit floats share one
COLUMNS: dict[str, str] = {
    "float64": "f64",
    "float32": "f32",
    "float16": "f16",
    "bfloat16": "bf16",
    "int8": "i8",
    "int16": "i16",
    "int32": "i32",
    "int64": "i64",
    "uint8": "u8",
    "uint16": "u16",
    "uint32": "u32",
    "uint64": "u64",
    "bool": "bool",
    "complex64": "c64",
    "complex128": "c128",
    "float8_e4m3fn": "f8",
    "float8_e5m2": "f8",
    "float8_e4m3fnuz": "f8",
    "float8_e5m2fnuz": "f8",
    "float8_e8m0fnu": "f8",
}
REDUCE_OPS = ("SUM", "AVG", "MIN", "MAX", "PRODUCT", "BAND", "BOR", "BXOR", "PREMUL_SUM")
_BITWISE = ("BAND", "BOR", "BXOR")


def dtype_named(name: str) -> torch.dtype:
    """torch.float32 of "float32"."""
    return getattr(torch, name)


def has_meaning(dtype: torch.dtype, reduce: str) -> bool:
    """PREMUL_SUM needs fractions, AVG numbers, bit operations bits; complex numbers have no order; fp8 only moves."""
    if dtype.is_floating_point and dtype.itemsize == 1:
        return False
    if dtype.is_complex:
        return reduce in ("SUM", "AVG", "PREMUL_SUM")
    if dtype.is_floating_point:
        return reduce not in _BITWISE
    return reduce != "PREMUL_SUM" and (reduce != "AVG" or dtype != torch.bool)


def factor_of(rank: int) -> float:
    """What PREMUL_SUM multiplies this rank's tensor by: a power of two, exact in every type."""
    return 2.0 if rank % 2 == 0 else 4.0


def reduce_op(reduce: str, rank: int) -> dist.ReduceOp:
    """The operation to pass to torch.distributed on this rank."""
    if reduce == "PREMUL_SUM":
        return dist._make_nccl_premul_sum(factor_of(rank))
    return getattr(dist.ReduceOp, reduce)


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


_SIGNED = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}
_FOLDS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "SUM": torch.add,
    "AVG": torch.add,
    "PREMUL_SUM": torch.add,
    "MIN": torch.minimum,
    "MAX": torch.maximum,
    "PRODUCT": torch.mul,
    "BAND": torch.bitwise_and,
    "BOR": torch.bitwise_or,
    "BXOR": torch.bitwise_xor,
}
_FOLDS_OF_BOOL = {**_FOLDS, "SUM": torch.logical_or, "PRODUCT": torch.logical_and}


def fold(inputs: list[Tensor], reduce: str) -> Tensor:
    """The expected result on every rank, to the bit."""
    dtype = inputs[0].dtype
    if dtype in _SIGNED:
        return _fold_unsigned(inputs, reduce, _SIGNED[dtype])
    if dtype.is_complex:
        return torch.view_as_complex(fold([torch.view_as_real(tensor) for tensor in inputs], reduce))
    folds = _FOLDS_OF_BOOL if dtype == torch.bool else _FOLDS
    terms = [tensor.float() if dtype in (torch.float16, torch.bfloat16) else tensor for tensor in inputs]
    if reduce == "PREMUL_SUM":
        terms = [term * factor_of(rank) for rank, term in enumerate(terms)]
    total = terms[0].clone()
    for term in terms[1:]:
        total = folds[reduce](total, term)
    if reduce == "AVG":
        toward_zero = None if total.is_floating_point() else "trunc"
        total = torch.div(total, torch.full_like(total, len(inputs)), rounding_mode=toward_zero)
    return total.to(dtype)


def _fold_unsigned(inputs: list[Tensor], reduce: str, signed: torch.dtype) -> Tensor:
    """torch has no arithmetic on wide unsigned integers: sums wrap, and flipping the top bit keeps the order."""
    if reduce == "AVG":
        sums = _fold_unsigned(inputs, "SUM", signed)
        means = [number // len(inputs) for number in sums.flatten().tolist()]
        return torch.tensor(means, dtype=sums.dtype).reshape(sums.shape)
    flip = torch.iinfo(signed).min if reduce in ("MIN", "MAX") else 0
    return (fold([tensor.view(signed) ^ flip for tensor in inputs], reduce) ^ flip).view(inputs[0].dtype)


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
