"""A model and its optimizer as one holder, whichever of the two knows about shards."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torch import nn
from torch.optim import Optimizer

from ringdp.checkpoint.errors import CheckpointError
from ringdp.checkpoint.holder import HasHolder, Holder
from ringdp.checkpoint.module import ModuleHolder, names_of
from ringdp.checkpoint.optimizer import OptimizerHolder
from ringdp.checkpoint.piece import Piece, Spec, Stretch


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
    """The holder of what was given to save or load on this rank.

    A model or an optimizer that is a Holder itself speaks for itself; a sharded optimizer for the parameters too.
    """
    if isinstance(model, Holder):
        return model if optimizer is None else Combined(model, _optimizer_holder(optimizer, model))
    if not isinstance(model, nn.Module):
        raise CheckpointError(f"the model is a {type(model).__name__}, neither a torch.nn.Module nor a Holder")
    saves_buffers = rank == 0
    if optimizer is None:
        return ModuleHolder(model, saves_buffers=saves_buffers)
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
