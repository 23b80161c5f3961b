"""Steps flat parameters bucket by bucket, by an optimizer of the pieces that this rank owns."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.optim import Optimizer

from ringdp.zero import native
from ringdp.zero.flat import FlatParameters


class BucketSteps:
    """begin: gives the optimizer the settings of a step; called before every bucket, as a class may change them.

    fuses: gradients are float32.
    """

    def __init__(
        self, flat: FlatParameters, optimizer: Optimizer, begin: Callable[[], None], *, fuses: bool = False
    ) -> None:
        self._flat, self._optimizer, self._begin, self._fuses = flat, optimizer, begin, fuses

    def sinks(self) -> list[Any]:
        """What steps each bucket as its gradients come; None where a bucket is stepped when all of it has come."""
        if not (self._fuses and native.serves(self._optimizer)):
            return [None] * len(self._flat)
        self._begin()
        pieces = zip(self._flat.pieces, self._flat.tensors, strict=True)
        places = {tensor: (piece.bucket, piece.offset) for piece, tensor in pieces}
        for bucket in range(len(self._flat)):
            self._flat.take_back(bucket)
        return native.sinks(self._optimizer, places, len(self._flat))

    @torch.no_grad()
    def step_bucket(self, bucket: int, gradients: Mapping[int, torch.Tensor], **arguments: Any) -> None:
        """gradients: of pieces; those without one are not stepped. arguments: of the class's step."""
        self._flat.take_back(bucket)
        if not gradients:
            return
        self._begin()
        tensors = self._flat.tensors
        for number, gradient in gradients.items():
            tensors[number].grad = gradient.to(tensors[number].dtype)
        try:
            native.step(self._optimizer, **arguments)
        finally:
            for number in gradients:
                tensors[number].grad = None
