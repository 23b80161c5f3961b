"""The state of a stock torch.optim optimizer as a holder: every rank has all of it, whole.

Tensors of the state become tensors of the checkpoint; other values of it and the groups become settings.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ringdp.checkpoint.errors import CheckpointError
from ringdp.checkpoint.groups import Groups
from ringdp.checkpoint.holder import MASTER, OF_MODULES, OPTIMIZER
from ringdp.checkpoint.masters import Stepped, say_left_out
from ringdp.checkpoint.module import names_of
from ringdp.checkpoint.piece import Piece, Spec, Stretch, dtype_name, spec_of, whole


class OptimizerHolder:
    """Holds the state of `optimizer`, which steps parameters of `module`."""

    def __init__(self, optimizer: Optimizer, module: nn.Module) -> None:
        """Raises CheckpointError for a parameter that is not the module's."""
        self._optimizer = optimizer
        self._names = names_of(module)
        self._groups = Groups(type(optimizer).__name__, optimizer.param_groups, self._names)
        self._stepped = Stepped([])
        self._left_out: list[str] = []

    def pieces(self) -> Iterator[Piece]:
        for name, key, value in self._state():
            if isinstance(value, Tensor):
                yield whole(key, name, value)

    def settings(self) -> Mapping[str, Any]:
        return self._groups.settings(self._state())

    def wants(self, saved: Sequence[Spec], settings: Mapping[str, Any]) -> Iterator[Stretch]:
        self._groups.check(settings)
        self._stepped = Stepped(saved)
        self._left_out = [spec.name for spec in saved if spec.kind == MASTER]
        parameters = {name: parameter for parameter, name in self._names.items()}
        for spec in (spec.row_major for spec in saved):
            if spec.kind in OF_MODULES or spec.kind == MASTER:
                continue
            if spec.name not in parameters:
                raise CheckpointError(f"this optimizer has no parameter for {spec} of the checkpoint")
            self._check_present(spec, parameters[spec.name])
            yield Stretch(spec, 0, spec.elements)

    def adopt(self, pieces: Sequence[Piece], settings: Mapping[str, Any]) -> None:
        say_left_out(self._left_out)
        state: dict[str, dict[str, Any]] = {n: dict(values) for n, values in settings[OPTIMIZER]["values"].items()}
        for piece in pieces:
            if piece.kind not in OF_MODULES:
                state.setdefault(piece.name, {})[piece.kind] = piece
        self._groups.adopt(settings)
        for group in self._optimizer.param_groups:
            for parameter in group["params"]:
                name = self._names[parameter]
                self._optimizer.state.pop(parameter, None)
                if (own := state.get(name)) is not None:
                    self._optimizer.state[parameter] = {
                        key: self._taken(value, parameter, group) if isinstance(value, Piece) else value
                        for key, value in own.items()
                    }

    def _taken(self, piece: Piece, parameter: Tensor, group: Mapping[str, Any]) -> Tensor:
        value = self._stepped.fitted(piece, parameter.dtype)
        return placed(value.view(piece.shape), parameter, group)

    def _state(self) -> Iterator[tuple[str, str, Any]]:
        """(parameter name, key, value) of the whole state."""
        for parameter, values in self._optimizer.state.items():
            for key, value in values.items():
                yield self._names[parameter], key, value

    def _check_present(self, spec: Spec, parameter: Tensor) -> None:
        """Raises CheckpointError when the state that is there is of another shape or dtype."""
        present = self._optimizer.state.get(parameter, {}).get(spec.kind)
        if isinstance(present, Tensor):
            here = spec_of(spec.kind, spec.name, present)
            dtype = self._stepped.dtype_for(spec, parameter.dtype)
            if here != replace(spec, dtype=dtype_name(dtype)):
                raise CheckpointError(f"this optimizer has {here}, the checkpoint {spec}")


def placed(value: Tensor, parameter: Tensor, group: Mapping[str, Any]) -> Tensor:
    """On the parameter's device, but counts stay on the CPU where torch.optim keeps them there."""
    on_device = value.dim() > 0 or group.get("capturable") or group.get("fused")
    return value.to(parameter.device if on_device else torch.device("cpu"))
