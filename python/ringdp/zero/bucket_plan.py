"""Stage 3's layouts: a bucket per unit, dtype and kind of parameter. Pure functions of shapes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ringdp import _native
from ringdp.zero.units import Unit

_C = _native.load()


@dataclass(frozen=True)
class BucketPlan:
    """Bucket `number` of a layout, which holds these parameters of a unit."""

    unit: int
    names: tuple[str, ...]
    layout: Any
    number: int
    trainable: bool


def bucket_plans(units: Sequence[Unit], named: Mapping[str, torch.Tensor], ranks: int) -> list[BucketPlan]:
    """Trainable parameters have a layout of their own, numbered as in `named`. Last units come first."""
    return [plan for trainable in (True, False) for plan in _of_kind(units, named, ranks, trainable)]


def _of_kind(units: Sequence[Unit], named: Mapping[str, torch.Tensor], ranks: int, trainable: bool) -> list[BucketPlan]:
    sharded = {name for unit in units for name in unit.parameters}
    numbers = {
        name: number
        for number, name in enumerate(n for n, p in named.items() if n in sharded and p.requires_grad is trainable)
    }
    members: list[tuple[int, list[str]]] = []
    for place in reversed(range(len(units))):
        by_dtype: dict[torch.dtype, list[str]] = {}
        for name in units[place].parameters:
            if name in numbers:
                by_dtype.setdefault(named[name].dtype, []).append(name)
        members.extend((place, names) for names in by_dtype.values())
    lengths = [named[name].numel() for name in numbers]
    layout = _C.ShardLayout(lengths, [[numbers[n] for n in names] for _, names in members], ranks)
    return [BucketPlan(unit, tuple(names), layout, n, trainable) for n, (unit, names) in enumerate(members)]
