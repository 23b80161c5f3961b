"""A sink steps what it is given, wherever the stretches are cut, and nothing else."""

from __future__ import annotations

import itertools

import pytest
import torch
from ringdp import _native
from ringdp.zero import native

_C = _native.load()
LENGTHS, OFFSETS, SHARD = (1500, 40), (0, 2048), 3072  # with padding between and behind
GIVEN = {"lr": 0.05, "weight_decay": 0.1}


def optimizer_of(pieces: list[torch.Tensor]) -> torch.optim.Optimizer:
    groups = [{"params": [pieces[0]], "lr": 0.01}, {"params": [pieces[1]]}]
    return torch.optim.AdamW([{**GIVEN, **group} for group in groups])


def start() -> list[torch.nn.Parameter]:
    source = torch.Generator().manual_seed(5)
    return [torch.nn.Parameter(torch.randn(length, generator=source)) for length in LENGTHS]


@pytest.mark.parametrize("cuts", [[], [1], [700, 1501, 2050, 2051], list(range(0, SHARD, 64))])
def test_stretches_step_as_the_whole_does(cuts):
    pieces, expected = start(), start()
    optimizer, reference = optimizer_of(pieces), optimizer_of(expected)
    places = {piece: (0, offset) for piece, offset in zip(pieces, OFFSETS, strict=True)}
    bounds = [0, *sorted(set(cuts) - {0}), SHARD]
    for step in range(3):
        shard = torch.randn(SHARD, generator=torch.Generator().manual_seed(step))
        (sink,) = native.sinks(optimizer, places, 1)
        for begin, end in itertools.pairwise(bounds):
            sink.take(begin, shard[begin:end])
        for piece, offset in zip(expected, OFFSETS, strict=True):
            piece.grad = shard[offset : offset + piece.numel()]
        native.step(reference)
    for piece, other in zip(pieces, expected, strict=True):
        assert torch.equal(piece, other) and piece.grad is None
        assert all(torch.equal(optimizer.state[piece][key], value) for key, value in reference.state[other].items())


def test_a_bucket_without_pieces_takes_everything_and_steps_nothing():
    pieces = start()
    before = [piece.detach().clone() for piece in pieces]
    optimizer = optimizer_of(pieces)
    sinks = native.sinks(optimizer, {piece: (1, offset) for piece, offset in zip(pieces, OFFSETS, strict=True)}, 3)
    for number in (0, 2):
        sinks[number].take(0, torch.ones(SHARD))
    assert all(torch.equal(piece, old) for piece, old in zip(pieces, before, strict=True))


def test_pieces_that_overlap_are_named():
    pieces = start()
    with pytest.raises(RuntimeError, match="a piece at 1499 overlaps one that ends at 1500"):
        native.sinks(optimizer_of(pieces), {pieces[0]: (0, 0), pieces[1]: (0, 1499)}, 1)
