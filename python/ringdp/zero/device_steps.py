"""Adam and AdamW on a device, inside the call that sums a bucket's gradients: where that runs, and what it is given."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.optim import Adam, AdamW, Optimizer

from ringdp import _native
from ringdp.zero import native
from ringdp.zero.flat import FlatParameters

_C = _native.load()
Numbers = dict[torch.Tensor, tuple[int, float]]  # of steps so far: the tensor's version, and what it held then


class DeviceSteps:
    """Of one set of flat parameters on a device.

    optimizer: of this rank's pieces. whole: gives the ZeroOptimizer. in_float32: gradients are.
    """

    def __init__(
        self, flat: FlatParameters, optimizer: Optimizer, whole: Callable[[], Any], *, in_float32: bool
    ) -> None:
        self._flat, self._optimizer, self._whole, self._in_float32 = flat, optimizer, whole, in_float32
        self._numbers: Numbers = {}

    def why_not(self) -> str:
        """Why buckets are stepped otherwise, alike on all ranks; "" where they are stepped so.

        Collective before the first call of the group on the device.
        """
        kind, groups = type(self._optimizer), self._optimizer.param_groups
        if kind not in (Adam, AdamW):
            return f"{kind.__name__} has no kernel there, only Adam and AdamW have"
        if not all(group["fused"] for group in groups):
            return "without fused=True steps have the bits of torch's own on that device"
        if any(map(native.is_unusual, groups)):
            return "tensors as betas, capturable and differentiable are torch's own"
        if not self._in_float32 or any(p.dtype != torch.float32 for p in self._flat.parameters):
            return "not all parameters and gradients are float32"
        stepped = {id(p) for group in self._whole().param_groups for p in group["params"]}
        if not all(id(p) in stepped for p in self._flat.parameters):
            return "parameters of the wrapper are missing in the optimizer's groups"
        device = self._flat.device
        backend = self._whole().process_group._get_backend(device)
        if not hasattr(backend, "why_no_step"):
            return f"tensors on {device} are carried by {backend.name()}, not by ringdp"
        return str(backend.why_no_step(device))

    def sinks(self) -> list[Any]:
        """For each bucket, what steps it. Only without why_not(). It counts as this step from now on."""
        places = self._flat.places()
        entries: list[list[tuple[Any, ...]]] = [[] for _ in range(len(self._flat))]
        known, self._numbers = self._numbers, {}
        for group in self._optimizer.param_groups:
            with native.gradients_for(group, places):
                state = native.adam_state(self._optimizer, group)
            settings = tuple(native.adam_settings(group).values())
            lists = [state.means, state.squares, *([state.largest] if group["amsgrad"] else [])]
            for piece, number, *own in zip(state.pieces, self._count(state.numbers, known), *lists, strict=True):
                bucket, offset = places[piece]
                entries[bucket].append((offset, own, number, settings))
        return [_C.device_sink(self._flat.kept(bucket), pieces) for bucket, pieces in enumerate(entries)]

    def _count(self, numbers: Sequence[torch.Tensor], known: Numbers) -> list[float]:
        """The numbers of this step. Read from the device only where somebody else has written them."""
        values = []
        for number in numbers:
            version, value = known.get(number, (-1, 0.0))
            values.append((value if version == number._version else float(number)) + 1)
        if numbers:
            torch._foreach_add_(list(numbers), 1)
        self._numbers.update((n, (n._version, value)) for n, value in zip(numbers, values, strict=True))
        return values
