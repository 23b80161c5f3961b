"""The parameters and buffers of a plain module as a holder: every rank has all of them, whole.

Names are the module's own, without the prefixes of DistributedDataParallel and torch.compile, so wrapped and plain
models share checkpoints. Buffers are those of rank 0, which DistributedDataParallel gives to the others too.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from ringdp.checkpoint.errors import CheckpointError
from ringdp.checkpoint.holder import BUFFER, PARAMETER
from ringdp.checkpoint.piece import Piece, Spec, Stretch, spec_of, whole


def unwrapped(module: nn.Module) -> nn.Module:
    """The user's own module."""
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
        """(kind, name, tensor); a tensor with several names under its first."""
        if PARAMETER in self._kinds:
            for name, parameter in self._module.named_parameters():
                yield PARAMETER, name, parameter
        saved = self._module.state_dict(keep_vars=True)
        for name, value in saved.items():
            if not isinstance(value, Tensor):
                raise CheckpointError(f"{name} is extra state of a module, which is no tensor: hand it in as `extra`")
        for name, buffer in self._module.named_buffers():
            if name in saved:
                yield BUFFER, name, buffer
