"""For ringdp.checkpoint: the parameters and masters that lie in flat buckets, in the pieces that this rank owns.

Parameters that are in no bucket (frozen ones at stage 2, those the optimizer does not step) and those without elements
are offered and taken whole by every rank.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ringdp.checkpoint.errors import CheckpointError
from ringdp.checkpoint.holder import MASTER, PARAMETER
from ringdp.checkpoint.masters import say_left_out
from ringdp.checkpoint.module import check_fit
from ringdp.checkpoint.piece import Piece, Spec, Stretch, dtype_name, spec_of, whole
from ringdp.zero.flat import FlatParameters, order_of


class StoredParameters:
    """A Holder of `flats` and of every other parameter in `names`."""

    def __init__(self, flats: Sequence[FlatParameters], names: Mapping[Tensor, str]) -> None:
        """Raises CheckpointError for a parameter without a name."""
        self._flats, self._names = flats, names
        self._left_out: list[str] = []
        for flat in flats:
            for parameter in flat.parameters:
                if parameter not in names:
                    raise CheckpointError(
                        f"a parameter of shape {list(parameter.shape)} that the optimizer shards is not in the model: "
                        "hand in the whole model"
                    )

    def pieces(self) -> Iterator[Piece]:
        for flat, bucket in self._buckets():
            flat.take_back(bucket)
            for kind, number, part in self._parts(flat, bucket):
                spec = self._spec(flat, number)
                yield Piece(kind, spec.name, spec.shape, flat.pieces[number].begin, part, spec.order)
        for name, parameter in self._whole():
            yield whole(PARAMETER, name, parameter)

    def settings(self) -> Mapping[str, Any]:
        return {}

    def wants(self, saved: Sequence[Spec], settings: Mapping[str, Any]) -> Iterator[Stretch]:
        mine = [spec_of(PARAMETER, name, parameter) for parameter, name in self._names.items()]
        check_fit(mine, [spec for spec in saved if spec.kind == PARAMETER])
        masters = {spec.name for spec in saved if spec.kind == MASTER}
        kept: set[str] = set()
        for flat, bucket in self._buckets():
            if flat.masters[bucket] is not None:
                kept |= {self._names[flat.parameters[index]] for index in flat.layout.buckets[bucket]}
            for kind, number, part in self._parts(flat, bucket):
                spec = self._spec(flat, number)
                if kind == PARAMETER or spec.name in masters:
                    of_kind = replace(spec, kind=kind, dtype=dtype_name(part.dtype))
                    yield Stretch(of_kind, flat.pieces[number].begin, flat.pieces[number].length)
        for name, parameter in self._whole():
            yield Stretch(spec_of(PARAMETER, name, parameter), 0, parameter.numel())
        self._left_out = sorted(masters - kept)

    @torch.no_grad()
    def adopt(self, pieces: Sequence[Piece], settings: Mapping[str, Any]) -> None:
        say_left_out(self._left_out)
        found = {(piece.kind, piece.name): piece.tensor for piece in pieces}
        works = []
        for flat, bucket in self._buckets():
            flat.take_back(bucket)
            for kind, number, part in self._parts(flat, bucket):
                name = self._spec(flat, number).name
                # Without a saved master it is the parameter, widened.
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
        """(kind, number of the piece, its elements) of what this rank owns of a bucket."""
        own, master = flat.own(bucket), flat.masters[bucket]
        for number in flat.in_bucket(bucket):
            place = flat.pieces[number].place
            yield PARAMETER, number, own[place]
            if master is not None:
                yield MASTER, number, master[place]

    def _spec(self, flat: FlatParameters, number: int) -> Spec:
        """Of the parameter that a piece is of, in the order of its memory."""
        parameter = flat.parameters[flat.pieces[number].parameter]
        return replace(spec_of(PARAMETER, self._names[parameter], parameter), order=order_of(parameter))

    def _whole(self) -> Iterator[tuple[str, Tensor]]:
        flat = {parameter for flat in self._flats for parameter in flat.parameters if parameter.numel()}
        for parameter, name in self._names.items():
            if parameter not in flat:
                yield name, parameter
