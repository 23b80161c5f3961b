"""A DiLoCo in `ringdp.checkpoint`: outer parameters as the model's own, so that a plain model can load them.

parameter, master          outer parameters in the types of the model, and in float32 where that is another one
momentum                   of the outer steps
on the way, residual       by fragment, flat
worker 3 parameter, ...    and buffer, residual, begun, made, and of its first inner optimizer: inner 0 exp_avg
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ringdp.checkpoint.holder import MASTER, OPTIMIZER, PARAMETER
from ringdp.checkpoint.holders import OptimizerHolder, unwrapped
from ringdp.checkpoint.piece import CheckpointError, Piece, Spec, Stretch, spec_of, whole
from ringdp.local import state
from ringdp.local.meetings import Meetings

_LOCAL = "local"


class LocalHolder:
    """See ringdp.checkpoint.Holder. The model's buffers, which are worker 0's, are held by the model's own holder."""

    def __init__(
        self, meetings: Meetings, before_saving: Callable[[], object], after_loading: Callable[[], object]
    ) -> None:
        """before_saving: raises an error where the state cannot be saved."""
        self._meetings, self._before_saving, self._after_loading = meetings, before_saving, after_loading
        self._inner = {
            f"worker {worker} inner {place} ": OptimizerHolder(optimizer, meetings.workers.model)
            for worker in meetings.workers
            for place, optimizer in enumerate(meetings.workers[worker].optimizers)
        }

    def pieces(self) -> Iterator[Piece]:
        """Of this rank."""
        self._before_saving()
        own = state.of_rank(self._meetings)
        for kind, name, tensor in self._whole(own):
            yield whole(kind, name, tensor)
        for kind in state.STRETCHES:
            for number, stretches in own[kind].items():
                elements = self._meetings.fragments[number].elements
                for offset, part in stretches:
                    yield Piece(_flat_kind(kind), f"fragment {number}", (elements,), offset, part)
        for prefix, holder in self._inner.items():
            for piece in holder.pieces():
                yield replace(piece, kind=prefix + piece.kind)

    def settings(self) -> Mapping[str, Any]:
        """Those of inner optimizers are where ranks may have different ones."""
        own = state.settings_of(self._meetings.options)
        values = {prefix.strip(): holder.settings()[OPTIMIZER] for prefix, holder in self._inner.items()}
        return {
            _LOCAL: {**own, "steps": self._meetings.steps, "log": self._meetings.log},
            OPTIMIZER: {"algorithm": "DiLoCo", "groups": [], "values": values},
        }

    def wants(self, saved: Sequence[Spec], settings: Mapping[str, Any]) -> Iterator[Stretch]:
        """CheckpointError names what does not fit."""
        if _LOCAL not in settings:
            raise CheckpointError("the checkpoint is not of a ringdp.DiLoCo: load it without one")
        try:
            state.check_settings(self._meetings.options, settings[_LOCAL])
        except ValueError as error:
            raise CheckpointError(str(error)) from error
        known = {spec.key: spec.row_major for spec in saved}
        for wanted in self._wanted(settings[_LOCAL]["steps"]):
            if wanted.key not in known:
                raise CheckpointError(f"the checkpoint lacks {wanted} of this run")
            if known[wanted.key] != wanted:
                raise CheckpointError(f"this run has {wanted}, the checkpoint {known[wanted.key]}")
            yield Stretch(wanted, 0, wanted.elements)
        for prefix, holder in self._inner.items():
            own = [
                replace(spec, kind=spec.kind.removeprefix(prefix))
                for spec in known.values()
                if spec.kind.startswith(prefix)
            ]
            for stretch in holder.wants(own, self._of_inner(prefix, settings)):
                yield replace(stretch, spec=replace(stretch.spec, kind=prefix + stretch.spec.kind))

    def adopt(self, pieces: Sequence[Piece], settings: Mapping[str, Any]) -> None:
        """What wants() has asked for."""
        meetings = self._meetings
        found: dict[str, dict[str, Tensor]] = {}
        for piece in pieces:
            found.setdefault(piece.kind, {})[piece.name] = piece.tensor.view(piece.shape)
        flats = {
            kind: {int(name.split()[1]): flat for name, flat in found.get(_flat_kind(kind), {}).items()}
            for kind in state.STRETCHES
        }
        workers = {
            worker: {tensors: found.get(f"worker {worker} {kind}", {}) for tensors, kind in state.OF_WORKER.items()}
            for worker in meetings.workers
        }
        outer = {**found[PARAMETER], **found.get(MASTER, {})}
        with torch.no_grad():
            for name, parameter in self._frozen():
                parameter.copy_(found[PARAMETER][name])
        plain = {name: settings[_LOCAL].get(name) for name in ("steps", "log")}
        state.adopt(meetings, {**plain, "outer": outer, "momentum": found["momentum"], "workers": workers, **flats})
        for prefix, holder in self._inner.items():
            own = [
                replace(piece, kind=piece.kind.removeprefix(prefix))
                for piece in pieces
                if piece.kind.startswith(prefix)
            ]
            holder.adopt(own, self._of_inner(prefix, settings))
        self._after_loading()

    def _whole(self, own: state.State) -> Iterator[tuple[str, str, Tensor]]:
        """(kind, name, tensor) of what is held as a whole."""
        rounded = self._meetings.outer.rounded()
        for fragment in self._meetings.fragments:
            for number, name in fragment.named():
                yield PARAMETER, name, rounded[number]
                if rounded[number].dtype != torch.float32:
                    yield MASTER, name, own["outer"][name]
        for name, parameter in self._frozen():
            yield PARAMETER, name, parameter
        for name, tensor in own["momentum"].items():
            yield "momentum", name, tensor
        for worker, its in own["workers"].items():
            for tensors, kind in state.OF_WORKER.items():
                for name, tensor in its[tensors].items():
                    yield f"worker {worker} {kind}", name, tensor

    def _wanted(self, steps: int) -> Iterator[Spec]:
        """Of a checkpoint after so many steps, but for the inner optimizers."""
        meetings = self._meetings
        for entry in self._whole(state.of_rank(meetings)):
            yield spec_of(*entry)
        numbers = {"on_the_way": meetings.schedule.on_the_way(steps), "residual": range(len(meetings.mean_residuals))}
        for kind, expected in numbers.items():
            for number in expected:
                shape = (meetings.fragments[number].elements,)
                yield Spec(_flat_kind(kind), f"fragment {number}", shape, "float32")

    def _frozen(self) -> Iterator[tuple[str, Tensor]]:
        trained = {name for fragment in self._meetings.fragments for name in fragment.names}
        for name, parameter in unwrapped(self._meetings.workers.model).named_parameters():
            if name not in trained:
                yield name, parameter

    def _of_inner(self, prefix: str, settings: Mapping[str, Any]) -> dict[str, Any]:
        values = settings[OPTIMIZER]["values"]
        if prefix.strip() not in values:
            raise CheckpointError(f"the checkpoint lacks the {prefix.strip()} of this run")
        return {OPTIMIZER: values[prefix.strip()]}


def _flat_kind(kind: str) -> str:
    return {"on_the_way": "on the way", "residual": "residual"}[kind]
