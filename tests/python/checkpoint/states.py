"""A state of odd tensors, and a holder of random uneven pieces of it: what no real optimizer would do, and may do."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import torch
from ringdp.checkpoint import Piece, Spec, Stretch
from ringdp.checkpoint.piece import reordered, spec_of
from torch import Tensor

SHAPES: dict[tuple[str, str], tuple[tuple[int, ...], torch.dtype]] = {
    ("parameter", "embed.weight"): ((37, 11), torch.bfloat16),
    ("parameter", "out.bias"): ((5,), torch.float32),
    ("parameter", "empty"): ((0, 3), torch.float32),
    ("master", "embed.weight"): ((37, 11), torch.float32),
    ("exp_avg", "embed.weight"): ((37, 11), torch.float32),
    ("exp_avg", "out.bias"): ((5,), torch.float64),
    ("step", "embed.weight"): ((), torch.float32),
    ("seen", "embed.weight"): ((3, 1, 7), torch.int64),
    ("mask", "out.bias"): ((5,), torch.bool),
    ("phase", "out.bias"): ((2, 2), torch.complex64),
}


def odd_state(seed: int) -> dict[tuple[str, str], Tensor]:
    """Tensors of random bytes: NaN payloads, infinities and negative zeros among them."""
    generator = torch.Generator().manual_seed(seed)

    def tensor_of(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        flat = torch.empty(shape, dtype=dtype).reshape(-1)
        high = 2 if dtype == torch.bool else 256
        size = (flat.numel() * dtype.itemsize,)
        return torch.randint(0, high, size, dtype=torch.uint8, generator=generator).view(dtype).reshape(shape)

    return {key: tensor_of(*what) for key, what in SHAPES.items()}


def bits_of(tensor: Tensor) -> bytes:
    """The bytes of a tensor: equal also where NaN is."""
    return bytes(tensor.contiguous().reshape(-1).view(torch.uint8).tolist())


def layout(spec: Spec, size: int, seed: int) -> list[list[Stretch]]:
    """What each of `size` ranks holds: random cuts, dealt at random; tensors of one element are on all ranks."""
    if spec.elements <= 1:
        return [[Stretch(spec, 0, spec.elements)] for _ in range(size)]
    draw = random.Random(f"{spec.key} {size} {seed}")
    cuts = sorted({0, spec.elements, *(draw.randrange(spec.elements) for _ in range(2 * size))})
    held: list[list[Stretch]] = [[] for _ in range(size)]
    for start, stop in pairwise(cuts):
        held[draw.randrange(size)].append(Stretch(spec, start, stop - start))
    return held


class Sharded:
    """A Holder of this rank's part of the layout; tensors of two dimensions or more lie transposed with an odd seed."""

    def __init__(self, state: Mapping[tuple[str, str], Tensor], rank: int, size: int, seed: int) -> None:
        self.place = (rank, size, seed)
        self.values: dict[str, Any] = {"optimizer": {"algorithm": "Odd", "groups": [], "values": {}}}
        self.held: list[Piece] = []
        for (kind, name), tensor in state.items():
            rows = spec_of(kind, name, tensor)
            for stretch in self._mine(rows):
                part = reordered(tensor.reshape(-1), rows, stretch.spec.order)[stretch.offset : stretch.stop].clone()
                self.held.append(Piece(kind, name, rows.shape, stretch.offset, part, stretch.spec.order))

    def pieces(self) -> Iterator[Piece]:
        yield from self.held

    def settings(self) -> Mapping[str, Any]:
        return self.values

    def wants(self, saved: Sequence[Spec], settings: Mapping[str, Any]) -> Iterator[Stretch]:
        for spec in saved:
            yield from self._mine(spec)

    def adopt(self, pieces: Sequence[Piece], settings: Mapping[str, Any]) -> None:
        self.held = list(pieces)
        self.values = dict(settings)

    def _mine(self, spec: Spec) -> list[Stretch]:
        rank, size, seed = self.place
        dimensions = len(spec.shape)
        order = tuple(reversed(range(dimensions))) if dimensions > 1 and seed % 2 else ()
        return layout(replace(spec, order=order), size, seed)[rank]


def assembled(of_ranks: Sequence[Sequence[Piece]]) -> dict[tuple[str, str], Tensor]:
    """The whole tensors of all ranks' pieces."""
    flats: dict[Spec, Tensor] = {}
    for piece in (piece for pieces in of_ranks for piece in pieces):
        spec = piece.stretch.spec
        flat = flats.setdefault(spec, torch.empty(spec.elements, dtype=piece.tensor.dtype))
        flat[piece.offset : piece.stretch.stop] = piece.tensor
    return {(spec.kind, spec.name): reordered(flat, spec, ()).view(spec.shape) for spec, flat in flats.items()}


def assert_same_bits(found: Mapping[Any, Tensor], expected: Mapping[Any, Tensor]) -> None:
    assert set(found) == set(expected)
    for key, tensor in expected.items():
        assert found[key].dtype == tensor.dtype and found[key].shape == tensor.shape, key
        assert bits_of(found[key]) == bits_of(tensor), key
