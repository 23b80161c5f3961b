"""The fragments of a model: consecutive parameters, about equally many elements in each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Fragment:
    """Parameters `numbers` of a model, laid end to end as one flat tensor of `elements`. shapes: of each."""

    numbers: tuple[int, ...]
    names: tuple[str, ...]
    shapes: tuple[torch.Size, ...]

    @property
    def elements(self) -> int:
        """Of all its parameters."""
        return sum(shape.numel() for shape in self.shapes)

    def named(self) -> Iterator[tuple[int, str]]:
        """(number, name) of each parameter."""
        return zip(self.numbers, self.names, strict=True)

    def flat(self, tensors: Sequence[Tensor] | Mapping[int, Tensor]) -> Tensor:
        """float32 [elements] of the model's tensors, by number; a copy."""
        return torch.cat([tensors[number].detach().reshape(-1).float() for number in self.numbers])

    def views(self, flat: Tensor) -> Iterator[tuple[int, str, Tensor]]:
        """(number, name, values in its shape) of each parameter."""
        parts = flat.split([shape.numel() for shape in self.shapes])
        for number, name, shape, part in zip(self.numbers, self.names, self.shapes, parts, strict=True):
            yield number, name, part.view(shape)


def cut(names: Sequence[str], parameters: Sequence[Tensor], fragments: int) -> list[Fragment]:
    """A parameter belongs to the fragment in which its middle lies. ValueError where a fragment has no elements."""
    total = sum(parameter.numel() for parameter in parameters)
    members: list[list[int]] = [[] for _ in range(fragments)]
    before = 0
    for number, parameter in enumerate(parameters):
        middle = 2 * before + parameter.numel()  # in halves of an element
        members[min(fragments * middle // max(1, 2 * total), fragments - 1)].append(number)
        before += parameter.numel()
    found = [
        Fragment(tuple(own), tuple(names[n] for n in own), tuple(parameters[n].shape for n in own)) for own in members
    ]
    for number, fragment in enumerate(found):
        if not fragment.elements:
            raise ValueError(
                f"DiLoCo: fragments={fragments}: fragment {number} would have no elements, as fragments consist of "
                f"whole parameters, and there are {len(parameters)} of {total} elements: use fewer fragments"
            )
    return found
