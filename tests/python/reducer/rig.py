"""On a rank: reducers over a few parameters whose gradients a test chooses, and the mean they must end with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from ranks import group_of
from ringdp import _native

_C = _native.load()


def gradients(rank: int, shapes: Sequence[Sequence[int]], dtype: torch.dtype = torch.float32, seed: int = 0) -> list:
    """What this rank contributes: real numbers, so that the order of a sum shows."""
    source = torch.Generator().manual_seed(1000 * seed + rank)
    drawn = dtype if dtype.is_complex else torch.float32
    return [torch.randn(shape, generator=source, dtype=drawn).to(dtype) for shape in shapes]


def folded(by_rank: Sequence[torch.Tensor | None], divisor: float) -> torch.Tensor:
    """((g0 + g1) + g2) + ..., divided once; 16-bit floats in float32, rounded once. None: no such rank."""
    there = [g for g in by_rank if g is not None]
    if there[0].is_complex():
        return torch.view_as_complex(folded([torch.view_as_real(g) for g in there], divisor))
    wide = torch.float32 if there[0].dtype in (torch.float16, torch.bfloat16) else there[0].dtype
    total = there[0].to(wide)
    for gradient in there[1:]:
        total = total + gradient.to(wide)
    return (total / divisor).to(there[0].dtype)


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Equal to the last bit, signs of zeros included."""
    return a.shape == b.shape and a.dtype == b.dtype and bytes(_raw(a)) == bytes(_raw(b))


def _raw(tensor: torch.Tensor) -> Any:
    return tensor.detach().contiguous().flatten().view(torch.uint8).numpy()


def reducer_of(parameters: Sequence[torch.Tensor], backend: str = "ringdp", **options: Any) -> Any:
    """A reducer with one bucket unless `bucket_limits` says otherwise; parameters are called p0, p1, ..."""
    options.setdefault("bucket_limits", [1 << 30])
    sparse = options.pop("sparse", [False] * len(parameters))
    names = [f"p{index}" for index in range(len(parameters))]
    return _C.Reducer(list(parameters), names, sparse, group_of(backend), _C.ReducerOptions(**options))


def backward(reducer: Any, parameters: Sequence[torch.Tensor], given: Sequence[torch.Tensor | None]) -> None:
    """One synchronised step in which parameter i gets the gradient given[i]; None: it is not used."""
    reducer.prepare_for_forward()
    reducer.rebuild_buckets()
    used = [(p * g).sum() for p, g in zip(parameters, given, strict=True) if g is not None]
    loss = torch.stack([term.real if term.is_complex() else term for term in used]).sum() if used else None
    reducer.prepare_for_backward([] if loss is None else [loss])
    if loss is not None:
        loss.backward()
