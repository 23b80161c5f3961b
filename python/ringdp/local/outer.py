"""The outer parameters, in float32, and their SGD with momentum; the same on all ranks."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ringdp.local.fragments import Fragment


class Outer:
    """By fragment: `parameters` and `momentum`, float32 [elements]."""

    def __init__(self, fragments: Sequence[Fragment], values: Sequence[Tensor]) -> None:
        """values: of the model's parameters now."""
        self._fragments = fragments
        self._dtypes = [value.dtype for value in values]
        self.parameters = [fragment.flat(values) for fragment in fragments]
        self.momentum = [torch.zeros_like(flat) for flat in self.parameters]

    def as_begun(self, number: int) -> Tensor:
        """Where workers have begun to walk: a fragment, rounded to the types of its parameters; float32."""
        fragment, flat = self._fragments[number], self.parameters[number]
        if all(self._dtypes[n] == torch.float32 for n in fragment.numbers):
            return flat
        return torch.cat([view.to(self._dtypes[n]).float().flatten() for n, _, view in fragment.views(flat)])

    def step(self, number: int, gradient: Tensor, rate: float, momentum: float, nesterov: bool) -> None:
        """torch.optim.SGD's, with a rounding after each operation, so that bits do not depend on the layout."""
        self.momentum[number].mul_(momentum).add_(gradient)
        ahead = self.momentum[number]
        if nesterov and momentum:
            ahead = gradient + ahead * momentum
        self.parameters[number].sub_(ahead * rate)

    def give(self, number: int, values: Sequence[Tensor], alpha: float) -> None:
        """A worker's parameters become alpha times their own values and (1 - alpha) times these."""
        for n, _, view in self._fragments[number].views(self.parameters[number]):
            values[n].copy_(view if alpha == 0 else values[n].float() * alpha + view * (1 - alpha))

    def set(self, values: Sequence[Tensor]) -> None:
        """The outer parameters are these now."""
        for fragment, flat in zip(self._fragments, self.parameters, strict=True):
            flat.copy_(fragment.flat(values))

    def rounded(self) -> list[Tensor]:
        """Copies, in the types and the order of the model's parameters."""
        found: dict[int, Tensor] = {}
        for fragment, flat in zip(self._fragments, self.parameters, strict=True):
            found.update({n: view.to(self._dtypes[n], copy=True) for n, _, view in fragment.views(flat)})
        return [found[n] for n in range(len(found))]
