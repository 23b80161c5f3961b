"""The serial references: one process, everyone's inputs, rank order.

16-bit floats are folded in float32; AVG divides once, whole numbers toward zero; there is one rounding, at the end.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ringdp.selftest.meaning import factor_of

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
    """What every rank must end with, to the bit."""
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
    """torch has no arithmetic on wide unsigned integers: sums wrap alike, and order is kept by flipping the top bit."""
    if reduce == "AVG":
        sums = _fold_unsigned(inputs, "SUM", signed)
        means = [number // len(inputs) for number in sums.flatten().tolist()]
        return torch.tensor(means, dtype=sums.dtype).reshape(sums.shape)
    flip = torch.iinfo(signed).min if reduce in ("MIN", "MAX") else 0
    return (fold([tensor.view(signed) ^ flip for tensor in inputs], reduce) ^ flip).view(inputs[0].dtype)
