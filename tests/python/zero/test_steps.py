"""Lists of pieces: what does not fit is refused by name before anything is written."""

from __future__ import annotations

import pytest
import torch
from ringdp import _native

_C = _native.load()
SGD = {"lr": 0.1, "momentum": 0.9, "dampening": 0.0, "weight_decay": 0.0}
FLAGS = {"nesterov": False, "maximize": False, "fastest": False}


def test_every_piece_is_stepped():
    parameters = [torch.ones(3), torch.ones(50)]
    gradients = [torch.full([3], 2.0), torch.full([50], 4.0)]
    buffers = [torch.empty(3), torch.empty(50)]
    _C.sgd_steps(parameters, buffers, [True, True], **SGD, **FLAGS).run([0, 1], gradients)
    assert torch.equal(buffers[0], gradients[0]) and torch.equal(buffers[1], gradients[1])
    assert torch.allclose(parameters[0], torch.tensor(0.8)) and torch.allclose(parameters[1], torch.tensor(0.6))


def test_pieces_that_are_not_named_stay():
    parameters = [torch.ones(3), torch.ones(50)]
    steps = _C.sgd_steps(parameters, [torch.empty(3), torch.empty(50)], [True, True], **SGD, **FLAGS)
    steps.run([1], [torch.full([50], 4.0)])
    assert torch.equal(parameters[0], torch.ones(3)) and torch.allclose(parameters[1], torch.tensor(0.6))


@pytest.mark.parametrize(
    ("gradient", "buffer", "says"),
    [
        (torch.ones(4), torch.ones(3), "gradients 1 has 4 elements, its parameter 3"),
        (torch.ones(3), torch.ones(2), "momentum buffers 1 has 2 elements"),
        (torch.ones(3).double(), torch.ones(3), "must be contiguous float32"),
        (torch.ones(6)[::2], torch.ones(3), "must be contiguous float32"),
    ],
)
def test_what_does_not_fit_is_named(gradient, buffer, says):
    parameters = [torch.ones(3), torch.ones(3)]
    with pytest.raises(RuntimeError, match=says):
        steps = _C.sgd_steps(parameters, [torch.ones(3), buffer], [True, True], **SGD, **FLAGS)
        steps.run([0, 1], [torch.ones(3), gradient])
    assert torch.equal(parameters[0], torch.ones(3))


def test_lists_of_unequal_length_are_named():
    steps = _C.sgd_steps([torch.ones(3)], [torch.ones(3)], [True], **SGD, **FLAGS)
    with pytest.raises(RuntimeError, match="0 tensors of gradients for 1 parameters"):
        steps.run([0], [])
    with pytest.raises(RuntimeError, match="piece 1 of 1"):
        steps.run([0, 1], [torch.ones(3), torch.ones(3)])
    with pytest.raises(RuntimeError, match="2 flags for 1 parameters"):
        _C.sgd_steps([torch.ones(3)], [torch.ones(3)], [True, True], **SGD, **FLAGS)
