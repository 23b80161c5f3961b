"""Where the gradients of pieces are: in every parameter's .grad, or in the shards that stage 2 leaves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch

from ringdp.zero.flat import FlatParameters, in_memory_order


class Gradients(Protocol):
    """Of one set of flat parameters."""

    def check(self, flat: FlatParameters) -> None:
        """RuntimeError, on all ranks alike, names a gradient that cannot be stepped."""

    def by_bucket(self, flat: FlatParameters) -> Callable[[int], dict[int, torch.Tensor]]:
        """Bucket -> piece -> its gradient, a flat view; pieces without one are left out. Until the next pass."""

    def drop(self, set_to_none: bool) -> None:
        """What zero_grad() does beside .grad."""


class WholeGradients:
    """Every rank has every mean in .grad: stage 1, stock DDP, no wrapper."""

    def check(self, flat: FlatParameters) -> None:
        """See Gradients."""
        flat.check_unchanged()
        for parameter in flat.parameters:
            if parameter.grad is not None and parameter.grad.layout != torch.strided:
                raise RuntimeError(
                    f"ZeroOptimizer: the gradient of a parameter of shape {list(parameter.shape)} is sparse, and a "
                    "sparse gradient has no shards: make its layer with sparse=False, or use zero_stage=0"
                )

    def by_bucket(self, flat: FlatParameters) -> Callable[[int], dict[int, torch.Tensor]]:
        """See Gradients."""

        def of_bucket(bucket: int) -> dict[int, torch.Tensor]:
            found = {}
            for number in flat.in_bucket(bucket):
                piece = flat.pieces[number]
                parameter = flat.parameters[piece.parameter]
                if parameter.grad is not None:
                    found[number] = in_memory_order(parameter.grad, parameter)[piece.part]
            return found

        return of_bucket

    def drop(self, set_to_none: bool) -> None:
        """Nothing."""


class ShardedGradients:
    """The reducer has reduced them to shards, and .grad stands for them."""

    def __init__(self, reducer: Any) -> None:
        self._reducer = reducer

    def check(self, flat: FlatParameters) -> None:
        """See Gradients."""
        flat.check_unchanged()  # which takes the reducer's hooks away
        self._reducer.check_finished()
        self._reducer.stand_ins.check()

    def by_bucket(self, flat: FlatParameters) -> Callable[[int], dict[int, torch.Tensor]]:
        """See Gradients."""
        used, shards = self.kept(), self._reducer.shards()

        def of_bucket(bucket: int) -> dict[int, torch.Tensor]:
            shard = shards[bucket]
            if shard is None:
                return {}
            pieces = {number: flat.pieces[number] for number in flat.in_bucket(bucket)}
            return {number: shard[piece.place] for number, piece in pieces.items() if used[piece.parameter]}

        return of_bucket

    def kept(self) -> list[bool]:
        """By parameter, whether it has a gradient: one that any rank had, and nobody has dropped."""
        return self._reducer.stand_ins.kept(self._reducer.used())

    def drop(self, set_to_none: bool) -> None:
        """Shards go, or become zeros."""
        self._reducer.drop_shards() if set_to_none else self._reducer.zero_shards()
