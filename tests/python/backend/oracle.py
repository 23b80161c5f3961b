"""Serial references for collectives, and inputs that every rank can make for every other."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from functools import reduce

import numpy as np
import torch
from ranks import HERE
from ringdp.backend import Options
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
COMPLEX = [torch.complex64, torch.complex128]
FLOAT8 = [
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.float8_e4m3fnuz,
    torch.float8_e5m2fnuz,
    torch.float8_e8m0fnu,
]
NUMBERS = [*FLOATS, *INTEGERS, *COMPLEX, torch.bool]
# 0, 1, fewer than ranks, not divisible, more than a segment, a slot and a link hold
SIZES = [0, 1, 2, 5, 1000, 4099]
LARGE = 300_001
WORLDS = {
    "shm 1": (1, {"transport": "shm"}),
    "shm 2": (2, {}),
    "shm 3": (3, {"transport": "shm"}),
    "shm 4": (4, {"transport": "shm"}),
    "tcp 2": (2, {"transport": "tcp"}),
    "tcp 3": (3, {"transport": "tcp"}),
    "direct 3": (3, {"algorithm": "direct"}),
    "exchange 3": (3, {"algorithm": "exchange"}),
    "ring 3": (3, {"algorithm": "ring"}),
    "ring 4 tcp": (4, {"algorithm": "ring", "transport": "tcp"}),
    "server 3": (3, {"algorithm": "server"}),
}
THOROUGH = ("shm 3", "tcp 2")
COMMON = [torch.float32, torch.bfloat16, torch.int64, torch.complex64, torch.bool]
LARGE_TOO = [torch.float32, torch.bfloat16, torch.int64]
PERIOD = 65_537  # of larger inputs, which take long to make: prime, so that no piece is like its neighbour
Cell = tuple[torch.dtype, int]


def cells_of(place: str, dtypes: list[torch.dtype]) -> list[Cell]:
    """Every dtype in two worlds, the common ones in all; a large tensor of some."""
    there = [dtype for dtype in dtypes if place in THOROUGH or dtype in COMMON]
    return [(dtype, size) for dtype in there for size in [*SIZES, *([LARGE] if dtype in LARGE_TOO else [])]]


def of_one_call(count: int) -> list[int]:
    """The sizes of the tensors that go together in a cell's coalesced call: all the usual ones, once."""
    return {SIZES[0]: SIZES, LARGE: [LARGE, *SIZES]}.get(count, [])


_FOLDS: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "SUM": np.add,
    "AVG": np.add,
    "MIN": np.minimum,
    "MAX": np.maximum,
    "PRODUCT": np.multiply,
    "BAND": np.bitwise_and,
    "BOR": np.bitwise_or,
    "BXOR": np.bitwise_xor,
}


def ops_of(dtype: torch.dtype) -> list[str]:
    """The reduce operations that have a meaning on a dtype (PREMUL_SUM apart)."""
    if dtype in FLOAT8:
        return []
    if dtype.is_complex:
        return ["SUM", "AVG"]
    order = ["SUM", "MIN", "MAX", "PRODUCT"]
    if dtype.is_floating_point:
        return [*order, "AVG"]
    return [*order, "BAND", "BOR", "BXOR", *(["AVG"] if dtype != torch.bool else [])]


def values(label: str, rank: int, count: int, dtype: torch.dtype) -> Tensor:
    """This rank's input: any value of an integer type; floats of mixed size and sign, so that order counts."""
    if count > PERIOD:
        part = values(label, rank, PERIOD, dtype)
        return torch.cat([part] * (count // PERIOD) + [part[: count % PERIOD]])
    source = np.random.default_rng(zlib.crc32(f"{label} {rank} {count}".encode()))
    if dtype == torch.bool:
        return torch.from_numpy(source.integers(0, 2, count, dtype="bool", endpoint=False))
    if dtype in FLOAT8:
        return torch.from_numpy(source.integers(0, 255, count, dtype="uint8", endpoint=True)).view(dtype)
    if not dtype.is_floating_point and not dtype.is_complex:
        limits = torch.iinfo(dtype)
        name = str(dtype).removeprefix("torch.")
        return torch.from_numpy(source.integers(limits.min, limits.max, count, dtype=name, endpoint=True))
    numbers = source.standard_normal(2 * count) * 2.0 ** source.integers(-4, 4, 2 * count)
    if dtype.is_complex:
        return torch.from_numpy(numbers.view("complex128")).to(dtype)
    return torch.from_numpy(numbers[:count].copy()).to(dtype)


def every_rank(label: str, count: int, dtype: torch.dtype, ranks: int | None = None) -> list[Tensor]:
    """On a rank: all ranks' inputs."""
    return [values(label, rank, count, dtype) for rank in range(ranks or HERE.size)]


def unwritten(count: int, dtype: torch.dtype) -> Tensor:
    """Room for a result, in which none of an earlier call is left."""
    tensor = torch.empty(count, dtype=dtype)
    tensor.view(torch.uint8).fill_(0x5A)
    return tensor


def small_integers(label: str, rank: int, count: int, dtype: torch.dtype) -> Tensor:
    """Inputs whose sums are exact in every order."""
    source = np.random.default_rng(zlib.crc32(f"{label} {rank} {count}".encode()))
    return torch.from_numpy(source.integers(0, 8, count)).to(dtype)


def fold(inputs: list[Tensor], op: str, divisor: float | None = None) -> Tensor:
    """The reduction in rank order, sums of floats in that of the setting `order`.

    16-bit floats are folded in fp32 and rounded once. AVG divides by `divisor` or N.
    """
    dtype = inputs[0].dtype
    if dtype.is_complex:
        real = fold([torch.view_as_real(tensor).reshape(-1) for tensor in inputs], op, divisor)
        return torch.view_as_complex(real.reshape(-1, 2)).reshape(inputs[0].shape)
    narrow = dtype in (torch.float16, torch.bfloat16)
    arrays = [(tensor.float() if narrow else tensor).numpy() for tensor in inputs]
    if dtype.is_floating_point and op in ("SUM", "AVG") and Options().get("order") == "tree":
        total = along_tree(arrays)
    else:
        total = reduce(_FOLDS[op], arrays[1:], arrays[0].copy())
    if op == "AVG" and not narrow and not dtype.is_floating_point:  # of whole numbers, toward zero
        ranks = total.dtype.type(len(inputs))
        return torch.from_numpy((total - np.fmod(total, ranks)) // ranks)
    if op == "AVG":
        total = total / total.dtype.type(divisor or len(inputs))
    return torch.from_numpy(total).to(dtype)


def along_tree(arrays: list[np.ndarray]) -> np.ndarray:
    """Their sum along the balanced tree; the left half gets the odd one."""
    middle = (len(arrays) + 1) // 2
    return arrays[0] if len(arrays) == 1 else along_tree(arrays[:middle]) + along_tree(arrays[middle:])


def raw(tensor: Tensor) -> Tensor:
    """Its bytes, in the order of its elements."""
    if tensor.numel() == 0:
        return torch.empty(0, dtype=torch.uint8)  # of nothing torch makes no such view
    return tensor.resolve_conj().reshape(-1).contiguous().view(torch.uint8)


def same_bits(a: Tensor, b: Tensor) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(raw(a), raw(b))


def bytes_of(tensor: Tensor) -> bytes:
    return raw(tensor).numpy().tobytes()
