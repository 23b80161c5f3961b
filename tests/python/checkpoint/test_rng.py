"""Generators go on where they stopped; with another number of ranks they start afresh, each rank differently."""

from __future__ import annotations

import json
import random

import numpy
import torch
from ringdp.checkpoint import rng


def drawn() -> tuple[object, ...]:
    return random.random(), random.gauss(0, 1), float(numpy.random.normal()), torch.rand(3).tolist()


def captured(seed: int) -> dict[str, object]:
    random.seed(seed)
    numpy.random.seed(seed)
    torch.manual_seed(seed)
    drawn()  # leaves half of a pair of normal numbers behind
    return json.loads(json.dumps(rng.capture()))


def test_the_same_number_of_ranks_goes_on():
    of_ranks, expected = [], []
    for rank in range(3):
        of_ranks.append(captured(rank))
        expected.append(drawn())
    for rank in (2, 0, 1):
        rng.resume(of_ranks, rank, 3)
        assert drawn() == expected[rank]


def test_another_number_of_ranks_starts_afresh_and_always_alike():
    of_ranks = [captured(rank) for rank in range(3)]
    started = []
    for size in (2, 4):
        for rank in range(size):
            rng.resume(of_ranks, rank, size)
            first = drawn()
            captured(99)
            rng.resume(of_ranks, rank, size)
            assert drawn() == first
            started.append(first)
    assert len(set(map(str, started))) == 6


def test_the_seed_depends_on_what_was_saved():
    assert rng.seed_of([captured(1)], 0, 2) != rng.seed_of([captured(2)], 0, 2)
    assert 0 <= rng.seed_of([captured(1)], 1, 2) < 2**63
