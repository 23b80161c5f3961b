"""Element types, reduce operations, and which of their combinations have a meaning."""

from __future__ import annotations

import torch
import torch.distributed as dist

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
    """PREMUL_SUM needs fractions, AVG numbers, bit operations bits; complex numbers have no order, fp8 is only moved."""
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
