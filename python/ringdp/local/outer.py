"""The outer parameters, in float32, and their SGD with momentum; the same on all ranks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from ringdp.local.fragments import Fragment


def step_outside(
    parameters: Tensor, momenta: Tensor, gradient: Tensor, rate: float, momentum: float, nesterov: bool
) -> None:
    """torch.optim.SGD's, with a rounding after each operation, so that bits do not depend on the layout. In place."""
    momenta.mul_(momentum).add_(gradient)
    ahead = momenta
    if nesterov and momentum:
        ahead = gradient + ahead * momentum
    parameters.sub_(ahead * rate)


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
        """A fragment becomes what step_outside() makes of it."""
        step_outside(self.parameters[number], self.momentum[number], gradient, rate, momentum, nesterov)

    def give(self, number: int, values: Sequence[Tensor], alpha: float) -> None:
        """A worker's parameters become alpha times their own values and (1 - alpha) times these."""
        for n, _, value in self.given(number, self.parameters[number], values, alpha):
            values[n].copy_(value)

    def given(
        self, number: int, flat: Tensor, values: Sequence[Tensor], alpha: float
    ) -> Iterator[tuple[int, str, Tensor]]:
        """What give() writes if these are the outer parameters of the fragment: (number, name, value), in float32."""
        for n, name, view in self._fragments[number].views(flat):
            yield n, name, view if alpha == 0 else values[n].float() * alpha + view * (1 - alpha)

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
