"""The checkpoint Holder of a `ZeroOptimizer`: parameters, fp32 copies, state and groups."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from ringdp.checkpoint.holder import MASTER, OF_MODULES, OPTIMIZER, PARAMETER
from ringdp.checkpoint.holders import Combined, check_fit, placed
from ringdp.checkpoint.optimizer_state import Groups, Stepped, say_left_out
from ringdp.checkpoint.piece import CheckpointError, Piece, Spec, Stretch, dtype_name, spec_of, whole
from ringdp.zero.element_wise import is_per_element
from ringdp.zero.flat import FlatParameters, order_of
from ringdp.zero.flat import Piece as Own


class StoredParameters:
    """A Holder of `flats`, of their fp32 copies, and of every other parameter in `names`.

    Every rank saves and loads whole parameters if they are in no bucket (frozen ones at stage 2, those the optimizer
    does not step) or have no elements.
    """

    def __init__(self, flats: Sequence[FlatParameters], names: Mapping[Tensor, str]) -> None:
        """Raises CheckpointError for a parameter without a name."""
        self._flats, self._names = flats, names
        self._left_out: list[str] = []
        for flat in flats:
            for parameter in flat.parameters:
                if parameter not in names:
                    raise CheckpointError(
                        f"a parameter of shape {list(parameter.shape)} that the optimizer shards is not in the model: "
                        "pass the whole model"
                    )

    def pieces(self) -> Iterator[Piece]:
        for flat, bucket in self._buckets():
            flat.check_unchanged(bucket)
            for number in flat.in_bucket(bucket):
                spec = self._spec(flat, number)
                for kind, part in zip((PARAMETER, MASTER), flat.values_of(number), strict=True):
                    if part is not None:
                        yield Piece(kind, spec.name, spec.shape, flat.pieces[number].begin, part, spec.order)
        for name, parameter in self._whole():
            yield whole(PARAMETER, name, parameter)

    def settings(self) -> Mapping[str, Any]:
        return {}

    def wants(self, saved: Sequence[Spec], settings: Mapping[str, Any]) -> Iterator[Stretch]:
        mine = [spec_of(PARAMETER, name, parameter) for parameter, name in self._names.items()]
        check_fit(mine, [spec for spec in saved if spec.kind == PARAMETER])
        fp32_copies = {spec.name for spec in saved if spec.kind == MASTER}
        kept: set[str] = set()
        for flat, bucket in self._buckets():
            if flat.fp32_copies[bucket] is not None:
                kept |= {self._names[flat.parameters[index]] for index in flat.layout.buckets[bucket]}
            for kind, number, part in self._parts(flat, bucket):
                spec = self._spec(flat, number)
                if kind == PARAMETER or spec.name in fp32_copies:
                    of_kind = replace(spec, kind=kind, dtype=dtype_name(part.dtype))
                    yield Stretch(of_kind, flat.pieces[number].begin, flat.pieces[number].length)
        for name, parameter in self._whole():
            yield Stretch(spec_of(PARAMETER, name, parameter), 0, parameter.numel())
        self._left_out = sorted(fp32_copies - kept)

    @torch.no_grad()
    def adopt(self, pieces: Sequence[Piece], settings: Mapping[str, Any]) -> None:
        say_left_out(self._left_out)
        found = {(piece.kind, piece.name): piece.tensor for piece in pieces}
        works = []
        for flat, bucket in self._buckets():
            flat.restore_views(bucket)
            for kind, number, part in self._parts(flat, bucket):
                name = self._spec(flat, number).name
                # Without a saved fp32 copy, the copy is the parameter, widened.
                part.copy_(found.get((kind, name), found[PARAMETER, name]))
            works.append(flat.gather(bucket))
        for work in works:
            if work is not None:
                work.wait()
        for name, parameter in self._whole():
            parameter.copy_(found[PARAMETER, name].view(parameter.shape))

    def _buckets(self) -> Iterator[tuple[FlatParameters, int]]:
        for flat in self._flats:
            for bucket in range(len(flat)):
                yield flat, bucket

    def _parts(self, flat: FlatParameters, bucket: int) -> Iterator[tuple[str, int, Tensor]]:
        """(kind, number of the piece, its elements) for all pieces of a bucket that this rank owns."""
        own, fp32_copy = flat.own(bucket), flat.fp32_copies[bucket]
        for number in flat.in_bucket(bucket):
            place = flat.pieces[number].place
            yield PARAMETER, number, own[place]
            if fp32_copy is not None:
                yield MASTER, number, fp32_copy[place]

    def _spec(self, flat: FlatParameters, number: int) -> Spec:
        """The description of a piece's parameter, in memory order."""
        parameter = flat.parameters[flat.pieces[number].parameter]
        return replace(spec_of(PARAMETER, self._names[parameter], parameter), order=order_of(parameter))

    def _whole(self) -> Iterator[tuple[str, Tensor]]:
        flat = {parameter for flat in self._flats for parameter in flat.parameters if parameter.numel()}
        for parameter, name in self._names.items():
            if parameter not in flat:
                yield name, parameter


class StoredState:
    """A Holder of the state of `optimizer`, which steps the pieces of `flats`, and of its groups.

    Parameters without elements have no pieces, so their state (a step count) is neither saved nor loaded.
    """

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
                    "on no rank steps it. Use zero_stage=1, or leave it out of both optimizers"
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
        """(name, piece, its whole parameter, the tensor that the optimizer steps) for all pieces of this rank."""
        for flat in self._flats:
            for own, tensor in zip(flat.pieces, flat.tensors, strict=True):
                parameter = flat.parameters[own.parameter]
                yield self._names[parameter], own, parameter, tensor

    def _taken(self, piece: Piece, parameter: Tensor, tensor: Tensor, group: Mapping[str, Any]) -> Tensor:
        value = self._stepped.fitted(piece, tensor.dtype)
        per_element = is_per_element(piece.kind, piece.shape, parameter.shape)
        return placed(value.view(tensor.shape if per_element else piece.shape), tensor, group)


class _Stored(Combined):
    """Parameters and state, with checks before they are saved or loaded, and an action after they are loaded."""

    def __init__(
        self,
        *holders: Any,
        check_whole: Callable[[], None],
        before_load: Callable[[], None],
        taken_over: Callable[[], None],
    ) -> None:
        super().__init__(*holders)
        self._check_whole, self._before_load, self._taken_over = check_whole, before_load, taken_over

    def pieces(self) -> Iterator[Piece]:
        self._check_whole()
        return super().pieces()

    def wants(self, saved: Sequence[Spec], settings: Mapping[str, Any]) -> Iterator[Stretch]:
        self._before_load()
        return super().wants(saved, settings)

    def adopt(self, pieces: Sequence[Piece], settings: Mapping[str, Any]) -> None:
        super().adopt(pieces, settings)
        self._taken_over()


def stored(
    flats: Sequence[FlatParameters],
    frozen: Sequence[FlatParameters],
    optimizer: Optimizer,
    groups: Sequence[dict[str, Any]],
    names: Mapping[Tensor, str],
    *,
    check_whole: Callable[[], None],
    before_load: Callable[[], None],
    taken_over: Callable[[], None],
) -> Combined:
    """optimizer: steps the pieces of `flats`; frozen: parameters in shards that no rank steps.

    groups: of whole parameters; names: of every parameter of the model.
    check_whole: called before saving; raises if the state is not complete. before_load: raises if it cannot be changed.
    taken_over: called after loading.
    """
    whole = Groups(type(optimizer).__name__, groups, names)
    parameters = StoredParameters([*flats, *frozen], names)
    state = StoredState(flats, optimizer, whole, names)
    return _Stored(parameters, state, check_whole=check_whole, before_load=before_load, taken_over=taken_over)
