"""Steps flat parameters bucket by bucket, by an optimizer of the pieces that this rank owns."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import torch
from torch.optim import Optimizer

from ringdp.zero import native
from ringdp.zero.device_steps import DeviceSteps
from ringdp.zero.flat import FlatParameters


class BucketSteps:
    """begin: gives the optimizer the settings of a step; called before every bucket, as a class may change them.

    fuses: gradients are float32. on_device: what serves where `flat` is on one.
    """

    def __init__(
        self,
        flat: FlatParameters,
        optimizer: Optimizer,
        begin: Callable[[], None],
        *,
        fuses: bool = False,
        on_device: DeviceSteps | None = None,
    ) -> None:
        self._flat, self._optimizer, self._begin = flat, optimizer, begin
        self._fuses = fuses
        self._on_device = on_device if on_device is not None and flat.device.type != "cpu" else None
        self._parts: dict[int, tuple[Any, int]] | None = None  # of pieces that are in a group, once foreseen

    def sinks(self) -> list[Any]:
        """What steps each bucket as its gradients come; None where a bucket is stepped when all of it has come."""
        self._begin()  # settings say how
        if self._why_apart():
            self._flat.check_unchanged()  # before the first of them is stepped
            return [None] * len(self._flat)
        self._take_back()
        if self._on_device is not None:
            return self._on_device.sinks()
        return native.sinks(self._optimizer, self._flat.places(), len(self._flat))

    def describe(self) -> str:
        """How buckets are stepped inside the backward pass, and why not in one sweep. Collective as sinks() is."""
        why_apart = self._why_apart()
        if why_apart:
            return f"a bucket is reduced, then stepped by torch, then gathered: {why_apart}"
        where = "by one call of the device" if self._on_device is not None else "while it is in the cache"
        return f"a bucket is reduced and stepped by ringdp's kernel {where}"

    def _why_apart(self) -> str:
        if self._on_device is not None:
            return self._on_device.why_not()
        served = self._fuses and native.serves(self._optimizer)
        return "" if served else "kernels are of SGD, Adam and AdamW of float32 with plain settings"

    def foresee(self, numbers: Collection[int]) -> None:
        """Of a step whose pieces with gradients are known: does now what need not be done between its buckets."""
        self._begin()  # settings say how
        if not native.serves(self._optimizer):
            return
        self._take_back()
        tensors = self._flat.tensors
        parts = native.begin(self._optimizer, {tensors[number] for number in numbers})
        self._parts = {number: parts[tensors[number]] for number in numbers if tensors[number] in parts}

    @torch.no_grad()
    def step_bucket(self, bucket: int, gradients: Mapping[int, torch.Tensor], **arguments: Any) -> None:
        """gradients: of pieces; those without one are not stepped. arguments: of the class's step."""
        tensors = self._flat.tensors
        typed = {number: gradient.to(tensors[number].dtype) for number, gradient in gradients.items()}
        if self._parts is not None:
            native.run([(*self._parts[n], gradient) for n, gradient in typed.items() if n in self._parts])
            return
        self._flat.take_back(bucket)
        if not gradients:
            return
        self._begin()
        for number, gradient in typed.items():
            tensors[number].grad = gradient
        try:
            native.step(self._optimizer, **arguments)
        finally:
            for number in gradients:
                tensors[number].grad = None

    def step_nothing(self) -> None:
        """A class that counts its steps counts on all ranks, also where there are no pieces."""
        self._begin()
        native.step(self._optimizer)

    def _take_back(self) -> None:
        for bucket in range(len(self._flat)):
            self._flat.take_back(bucket)
