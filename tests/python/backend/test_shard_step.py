"""A step on a device that does not fit its gradients is refused by name, before any rank is asked for anything."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist

ADAM = (1e-3, 0.9, 0.999, 1e-8, 0.0, False, False, False)
AMSGRAD = (*ADAM[:6], True, False)


def floats(count: int) -> torch.Tensor:
    return torch.zeros(count)


def states(*counts: int) -> list[torch.Tensor]:
    return [floats(count) for count in counts]


# What is refused, gradients, parameters, pieces; of two ranks, and what fits is a device's.
CASES: list[tuple[str, torch.Tensor, torch.Tensor, list[tuple[int, list[torch.Tensor], float, Any]]]] = [
    ("tensors on cpu are not of a device", floats(64), floats(64), [(0, states(5, 5), 1.0, ADAM)]),
    ("tensors on cpu are not of a device", floats(64), floats(32), []),
    ("60 gradients are no 2 equal parts of whole packs", floats(60), floats(60), []),
    ("16 parameters; a bucket of 64 gradients has as many, or 32", floats(64), floats(16), []),
    ("parameters must be a flat contiguous float32 tensor", floats(64), floats(64).double(), []),
    ("gradients must be a flat contiguous float32 tensor", floats(128)[::2], floats(64), []),
    ("parameters must begin at a multiple of 16 bytes", floats(64), floats(65)[1:], []),
    ("the piece at 0 must have 3 states", floats(64), floats(64), [(0, states(4, 4), 1.0, AMSGRAD)]),
    ("the states of the piece at 0 have different lengths", floats(64), floats(64), [(0, states(4, 8), 1.0, ADAM)]),
    ("the piece at 2 of 4 elements must begin", floats(64), floats(64), [(2, states(4, 4), 1.0, ADAM)]),
    ("the piece at 28 of 8 elements must", floats(64), floats(64), [(28, states(8, 8), 1.0, ADAM)]),
    (
        "the piece at 4 of 4 elements must begin at a multiple of 4 from 8 on",
        floats(64),
        floats(64),
        [(0, states(8, 8), 1.0, ADAM), (4, states(4, 4), 1.0, ADAM)],
    ),
]


def said() -> list[str]:
    """On a rank: what is said to each."""
    from ringdp import _native

    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    found = []
    for _, gradients, parameters, pieces in CASES:
        try:
            backend.reduce_scatter_step(gradients, 2.0, _native.load().device_sink(parameters, pieces))
            found.append("")
        except RuntimeError as error:
            found.append(str(error))
    return found


@pytest.fixture(scope="module")
def everything_said(world_of) -> list[str]:
    return world_of(2).run(said)[0]


@pytest.mark.parametrize("number", range(len(CASES)))
def test_what_does_not_fit_is_named(everything_said, number):
    assert CASES[number][0] in everything_said[number]
