"""For ringdp.checkpoint: the optimizer's state of the pieces that this rank owns, and its groups.

Parameters without elements have no pieces, so a state of theirs (a step count) is neither offered nor taken.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from ringdp.checkpoint.errors import CheckpointError
from ringdp.checkpoint.groups import Groups
from ringdp.checkpoint.holder import MASTER, OF_MODULES, OPTIMIZER
from ringdp.checkpoint.masters import Stepped
from ringdp.checkpoint.optimizer import placed
from ringdp.checkpoint.piece import Piece, Spec, Stretch, whole
from ringdp.zero.elements import is_per_element
from ringdp.zero.flat import FlatParameters, order_of
from ringdp.zero.flat import Piece as Own


class StoredState:
    """A Holder of the state of `optimizer`, which steps the pieces of `flats`."""

    def __init__(
        self, flats: Sequence[FlatParameters], optimizer: Optimizer, groups: Groups, names: Mapping[Tensor, str]
    ) -> None:
        self._flats, self._optimizer, self._groups, self._names = flats, optimizer, groups, names
        self._stepped = Stepped([])

    def pieces(self) -> Iterator[Piece]:
        for name, own, parameter, tensor in self._own():
            for key, value in self._optimizer.state.get(tensor, {}).items():
                if not isinstance(value, Tensor):
                    continue
                if is_per_element(key, value.shape, tensor.shape):
                    flat = value.detach().reshape(-1)
                    yield Piece(key, name, tuple(parameter.shape), own.begin, flat, order_of(parameter))
                else:
                    yield whole(key, name, value)

    def settings(self) -> Mapping[str, Any]:
        return self._groups.settings(
            (name, key, value)
            for name, _, _, tensor in self._own()
            for key, value in self._optimizer.state.get(tensor, {}).items()
        )

    def wants(self, saved: Sequence[Spec], settings: Mapping[str, Any]) -> Iterator[Stretch]:
        self._groups.check(settings)
        self._stepped = Stepped(saved)
        places = {name: (own, parameter) for name, own, parameter, _ in self._own()}
        sharded = {self._names[parameter] for flat in self._flats for parameter in flat.parameters}
        known = self._groups.names
        for spec in (spec.row_major for spec in saved if spec.kind not in (*OF_MODULES, MASTER)):
            if spec.name not in known:
                raise CheckpointError(f"this optimizer has no parameter for {spec} of the checkpoint")
            if spec.name not in sharded:
                raise CheckpointError(
                    f"{spec} of the checkpoint has no place here: {spec.name} needs no gradient, so from zero_stage=2 "
                    "on nobody steps it. Use zero_stage=1, or leave it out of both optimizers"
                )
            if spec.name not in places:
                continue  # other ranks own it
            own, parameter = places[spec.name]
            if is_per_element(spec.kind, spec.shape, parameter.shape):
                yield Stretch(replace(spec, order=order_of(parameter)), own.begin, own.length)
            else:
                yield Stretch(spec, 0, spec.elements)

    def adopt(self, pieces: Sequence[Piece], settings: Mapping[str, Any]) -> None:
        state: dict[str, dict[str, Any]] = {n: dict(values) for n, values in settings[OPTIMIZER]["values"].items()}
        for piece in pieces:
            if piece.kind not in (*OF_MODULES, MASTER):
                state.setdefault(piece.name, {})[piece.kind] = piece
        self._groups.adopt(settings)
        group_of = {tensor: group for group in self._optimizer.param_groups for tensor in group["params"]}
        for name, _, parameter, tensor in self._own():
            self._optimizer.state.pop(tensor, None)
            if name in state and tensor in group_of:
                self._optimizer.state[tensor] = {
                    key: self._taken(value, parameter, tensor, group_of[tensor]) if isinstance(value, Piece) else value
                    for key, value in state[name].items()
                }

    def _own(self) -> Iterator[tuple[str, Own, Tensor, Tensor]]:
        """(name, piece, its whole parameter, what the optimizer steps) of all that this rank owns."""
        for flat in self._flats:
            for own, tensor in zip(flat.pieces, flat.tensors, strict=True):
                parameter = flat.parameters[own.parameter]
                yield self._names[parameter], own, parameter, tensor

    def _taken(self, piece: Piece, parameter: Tensor, tensor: Tensor, group: Mapping[str, Any]) -> Tensor:
        value = self._stepped.fitted(piece, tensor.dtype)
        per_element = is_per_element(piece.kind, piece.shape, parameter.shape)
        return placed(value.view(tensor.shape if per_element else piece.shape), tensor, group)
