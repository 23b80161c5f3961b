"""The workers that this rank plays: each has parameters, buffers and inner optimizers of its own; one is in place.

To put a worker in place is to let the model's parameters point to that worker's memory and to copy its buffers: nothing
is copied for parameters, and inner optimizers, which know the parameters as objects, do not notice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

NOBODY = -1  # is in place
Inner = Callable[[list[nn.Parameter]], Optimizer | Sequence[Optimizer]]


@dataclass
class Worker:
    """values, buffers: while it is not in place. residuals: by fragment, what codes have left out of its contributions.

    gradients: of a synchronous step that it has computed and not made. Where workers do not wait for each other, begun:
    by fragment, where its round has begun, float32 [elements]; made: its steps, an int64 scalar.
    """

    values: list[Tensor]
    buffers: list[Tensor]
    optimizers: list[Optimizer] = field(default_factory=list)
    residuals: list[Tensor] = field(default_factory=list)
    gradients: list[Tensor | None] | None = None
    begun: list[Tensor] = field(default_factory=list)
    made: Tensor | None = None


class Workers:
    """Of one rank, by number. Not thread-safe; the model is in the hands of one worker at a time."""

    def __init__(self, model: nn.Module, parameters: Sequence[nn.Parameter], numbers: Sequence[int], inner: Inner):
        """All begin with the values that the model has now; inner(parameters) is called once for each."""
        self.model, self.parameters, self._inner = model, list(parameters), inner
        self.in_place = NOBODY
        self._by_number: dict[int, Worker] = {}
        for number in numbers:
            self.add(number)
        self.put_in_place(numbers[0])

    def add(self, number: int) -> None:
        """One more, with the values that the model has now and new inner optimizers; it is in place then."""
        if self.in_place == NOBODY:
            self._by_number[number], self.in_place = Worker([], []), number  # the model's memory is its own
        else:
            self._by_number[number] = Worker(self._copies(), self.buffers_copied())
            self.put_in_place(number)
        self._by_number = dict(sorted(self._by_number.items()))
        self[number].optimizers = self.new_optimizers()

    def new_optimizers(self) -> list[Optimizer]:
        """Of one more worker."""
        made = self._inner(self.parameters)
        return [made] if isinstance(made, Optimizer) else list(made)

    def remove(self, number: int) -> None:
        """It is played elsewhere. If it is in place, the model keeps its values."""
        del self._by_number[number]
        if number == self.in_place:
            self.in_place = NOBODY

    def __getitem__(self, number: int) -> Worker:
        return self._by_number[number]

    def __iter__(self) -> Iterator[int]:
        """The numbers."""
        return iter(self._by_number)

    def __len__(self) -> int:
        return len(self._by_number)

    def put_in_place(self, number: int) -> None:
        """Passes and inner steps are this worker's from now on."""
        torch.clear_autocast_cache()  # which knows parameters as objects, and has their values before
        if number == self.in_place:
            return
        now = self[number]
        if self.in_place != NOBODY:
            before = self[self.in_place]
            before.values, before.buffers = self.values(self.in_place), self.buffers_copied()
        self._point_to(now.values)
        self.set_buffers(now.buffers)
        now.values, now.buffers = [], []
        self.in_place = number

    def values(self, number: int) -> list[Tensor]:
        """A worker's parameters, without gradients; in the order of `parameters`."""
        return [p.data for p in self.parameters] if number == self.in_place else self[number].values

    def buffers(self, number: int) -> list[Tensor]:
        """A worker's buffers, to be read or changed in place."""
        return list(self.model.buffers()) if number == self.in_place else self[number].buffers

    @contextmanager
    def replaced(self, values: Sequence[Tensor]) -> Iterator[None]:
        """Inside, the model has these parameters, of no worker; gradients that they get there are dropped."""
        own, gradients = [parameter.data for parameter in self.parameters], self.take_gradients()
        torch.clear_autocast_cache()
        self._point_to(values)
        try:
            yield
        finally:
            self._point_to(own)
            self._set_gradients(gradients)
            torch.clear_autocast_cache()

    def take_gradients(self) -> list[Tensor | None]:
        """Those of the worker in place, which the parameters have no longer."""
        found = [parameter.grad for parameter in self.parameters]
        self.drop_gradients()
        return found

    def drop_gradients(self) -> None:
        """Of the worker in place."""
        for parameter in self.parameters:
            parameter.grad = None

    def make_step(self, gradients: Iterable[Tensor | None] | None = None) -> None:
        """The inner step of the worker in place, with these gradients (default: those that it has)."""
        if gradients is not None:
            self._set_gradients(gradients)
        for optimizer in self[self.in_place].optimizers:
            optimizer.step()
        self.drop_gradients()

    def buffers_copied(self) -> list[Tensor]:
        """Of the worker in place."""
        return [buffer.detach().clone() for buffer in self.model.buffers()]

    @torch.no_grad()
    def set_buffers(self, values: Sequence[Tensor]) -> None:
        """Of the worker in place."""
        for buffer, value in zip(self.model.buffers(), values, strict=True):
            buffer.copy_(value)

    def _copies(self) -> list[Tensor]:
        return [parameter.detach().clone() for parameter in self.parameters]

    def _set_gradients(self, gradients: Iterable[Tensor | None]) -> None:
        for parameter, gradient in zip(self.parameters, gradients, strict=True):
            parameter.grad = gradient

    def _point_to(self, values: Sequence[Tensor]) -> None:
        for parameter, value in zip(self.parameters, values, strict=True):
            parameter.data = value
