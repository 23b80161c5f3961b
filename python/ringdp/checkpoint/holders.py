"""Holders of a plain module and of a stock torch.optim optimizer, and of a model and its optimizer together.

Every rank has all of such a state. Names are the module's own, without the prefixes of DistributedDataParallel
and torch.compile, so wrapped and plain models share checkpoints. Buffers are those of rank 0, which
DistributedDataParallel gives to the others too. Tensors of the optimizer's state become tensors of the checkpoint; its
other values and the groups become settings.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from ringdp.checkpoint.holder import BUFFER, MASTER, OF_MODULES, OPTIMIZER, PARAMETER, HasHolder, Holder
from ringdp.checkpoint.optimizer_state import Groups, Stepped, say_left_out
from ringdp.checkpoint.piece import CheckpointError, Piece, Spec, Stretch, dtype_name, spec_of, whole
from ringdp.compress.holder import CompressionToo
from ringdp.innermost import innermost


def unwrapped(module: nn.Module) -> nn.Module:
    """The user's module, without wrappers."""
    # Naming torch._dynamo imports it, which takes seconds: a module is compiled only if that has happened.
    dynamo = sys.modules.get("torch._dynamo.eval_frame")
    while True:
        if isinstance(module, DistributedDataParallel):
            module = module.module
        elif dynamo is not None and isinstance(module, dynamo.OptimizedModule):
            module = module._orig_mod
        else:
            return module


def names_of(module: nn.Module) -> dict[Tensor, str]:
    """The first name of every parameter."""
    return {parameter: name for name, parameter in unwrapped(module).named_parameters()}


def check_fit(mine: Sequence[Spec], theirs: Sequence[Spec]) -> None:
    """Raises CheckpointError unless a model's tensors are those of a checkpoint, whatever their order."""
    here, there = ({spec.key: spec.row_major for spec in specs} for specs in (mine, theirs))
    for key in sorted({*here, *there}):
        if key not in there:
            raise CheckpointError(f"the checkpoint lacks {here[key]} of this model")
        if key not in here:
            raise CheckpointError(f"this model has no place for {there[key]} of the checkpoint")
        if here[key] != there[key]:
            raise CheckpointError(f"this model has {here[key]}, the checkpoint {there[key]}")


class ModuleHolder:
    """Holds `module`'s parameters, unless a sharded optimizer does, and its buffers."""

    def __init__(self, module: nn.Module, *, parameters: bool = True, saves_buffers: bool = True) -> None:
        self._module = unwrapped(module)
        self._kinds = (PARAMETER, BUFFER) if parameters else (BUFFER,)
        self._saves_buffers = saves_buffers

    def pieces(self) -> Iterator[Piece]:
        for kind, name, tensor in self._tensors():
            if kind == PARAMETER or self._saves_buffers:
                yield whole(kind, name, tensor)

    def settings(self) -> Mapping[str, Any]:
        return {}

    def wants(self, saved: Sequence[Spec], settings: Mapping[str, Any]) -> Iterator[Stretch]:
        mine = [spec_of(*entry) for entry in self._tensors()]
        check_fit(mine, [spec for spec in saved if spec.kind in self._kinds])
        for spec in mine:
            yield Stretch(spec, 0, spec.elements)

    def adopt(self, pieces: Sequence[Piece], settings: Mapping[str, Any]) -> None:
        tensors = {f"{kind}/{name}": tensor for kind, name, tensor in self._tensors()}
        with torch.no_grad():
            for piece in pieces:
                if piece.kind in self._kinds:
                    tensors[piece.stretch.spec.key].copy_(piece.tensor.view(piece.shape))

    def _tensors(self) -> Iterator[tuple[str, str, Tensor]]:
        """(kind, name, tensor); a tensor with several names has its first."""
        if PARAMETER in self._kinds:
            for name, parameter in self._module.named_parameters():
                yield PARAMETER, name, parameter
        saved = self._module.state_dict(keep_vars=True)
        for name, value in saved.items():
            if not isinstance(value, Tensor):
                raise CheckpointError(f"{name} is extra state of a module, which is not a tensor: pass it as `extra`")
        for name, buffer in self._module.named_buffers():
            if name in saved:
                yield BUFFER, name, buffer


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
        """Raises CheckpointError if existing state has another shape or dtype."""
        present = self._optimizer.state.get(parameter, {}).get(spec.kind)
        if isinstance(present, Tensor):
            here = spec_of(spec.kind, spec.name, present)
            dtype = self._stepped.dtype_for(spec, parameter.dtype)
            if here != replace(spec, dtype=dtype_name(dtype)):
                raise CheckpointError(f"this optimizer has {here}, the checkpoint {spec}")


def placed(value: Tensor, parameter: Tensor, group: Mapping[str, Any]) -> Tensor:
    """Moves a value to the parameter's device, except step counts that torch.optim keeps on the CPU."""
    on_device = value.dim() > 0 or group.get("capturable") or group.get("fused")
    return value.to(parameter.device if on_device else torch.device("cpu"))


class Combined:
    """Several holders of one state; each takes the pieces of its own kinds."""

    def __init__(self, *holders: Holder) -> None:
        self._holders = holders

    def pieces(self) -> Iterator[Piece]:
        for holder in self._holders:
            yield from holder.pieces()

    def settings(self) -> Mapping[str, Any]:
        return {key: value for holder in self._holders for key, value in holder.settings().items()}

    def wants(self, saved: Sequence[Spec], settings: Mapping[str, Any]) -> Iterator[Stretch]:
        for holder in self._holders:
            yield from holder.wants(saved, settings)

    def adopt(self, pieces: Sequence[Piece], settings: Mapping[str, Any]) -> None:
        for holder in self._holders:
            holder.adopt(pieces, settings)


def holder_of(model: nn.Module | Holder, optimizer: Optimizer | HasHolder | Holder | None, rank: int) -> Holder:
    """The holder of the model and optimizer that were given to save or load on this rank.

    A model or an optimizer that is a Holder itself speaks for itself; a sharded optimizer for the parameters too. With
    the residuals of a wrapper with compress=...
    """
    holder = _holder_of(model, optimizer, rank)
    if holder is model:
        return holder
    is_wrapper = isinstance(model, DistributedDataParallel)
    return CompressionToo(holder, getattr(model, "_compression", None) if is_wrapper else None)


def _holder_of(model: nn.Module | Holder, optimizer: Optimizer | HasHolder | Holder | None, rank: int) -> Holder:
    if isinstance(model, Holder):
        return model if optimizer is None else Combined(model, _optimizer_holder(optimizer, model))
    if not isinstance(model, nn.Module):
        raise CheckpointError(f"the model is a {type(model).__name__}, neither a torch.nn.Module nor a Holder")
    saves_buffers = rank == 0
    if optimizer is None:
        return ModuleHolder(model, saves_buffers=saves_buffers)
    if isinstance(optimizer, Optimizer):
        optimizer = innermost(optimizer)
    sharded = isinstance(optimizer, (Holder, HasHolder))
    module = ModuleHolder(model, parameters=not sharded, saves_buffers=saves_buffers)
    return Combined(module, _optimizer_holder(optimizer, model))


def _optimizer_holder(optimizer: Optimizer | HasHolder | Holder, model: Any) -> Holder:
    if isinstance(optimizer, Holder):
        return optimizer
    if isinstance(optimizer, HasHolder) and isinstance(model, nn.Module):
        return optimizer.holder(names_of(model))
    if isinstance(optimizer, Optimizer) and isinstance(model, nn.Module):
        return OptimizerHolder(optimizer, model)
    raise CheckpointError(
        f"the optimizer is a {type(optimizer).__name__}, neither a torch.optim.Optimizer of a module nor a Holder"
    )
