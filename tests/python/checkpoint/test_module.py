"""A module's parameters and buffers: whole, by plain names, and refused by name when they do not fit."""

from __future__ import annotations

import pytest
import torch
from ringdp.checkpoint import CheckpointError
from ringdp.checkpoint.module import ModuleHolder, unwrapped
from ringdp.checkpoint.piece import Piece, spec_of
from small_run import model_of
from torch import nn


def specs(module: nn.Module) -> list:
    kinds = {name: "parameter" for name, _ in module.named_parameters()}
    return [spec_of(kinds.get(name, "buffer"), name, tensor) for name, tensor in module.state_dict().items()]


def test_it_holds_parameters_and_persistent_buffers():
    module = model_of()
    module.register_buffer("scratch", torch.zeros(2), persistent=False)
    pieces = list(ModuleHolder(module).pieces())
    assert sorted(piece.stretch.spec for piece in pieces) == sorted(specs(module))
    assert {piece.name for piece in pieces if piece.kind == "buffer"} == {
        "1.running_mean",
        "1.running_var",
        "1.num_batches_tracked",
    }


def test_other_ranks_leave_the_buffers_to_rank_0_and_a_sharded_optimizer_has_the_parameters():
    module = model_of()
    assert {piece.kind for piece in ModuleHolder(module, saves_buffers=False).pieces()} == {"parameter"}
    assert {piece.kind for piece in ModuleHolder(module, parameters=False).pieces()} == {"buffer"}


def test_tied_parameters_are_one():
    module = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    module[1].weight = module[0].weight
    assert [piece.name for piece in ModuleHolder(module).pieces()] == ["0.weight", "0.bias", "1.bias"]


def test_it_adopts_into_the_tensors_that_are_there():
    source, target = model_of(1), model_of(2)
    target[0].weight.data = target[0].weight.data.t().contiguous().t()  # other strides, same elements
    before = {name: parameter.data_ptr() for name, parameter in target.named_parameters()}
    pieces = list(ModuleHolder(source).pieces())
    wanted = list(ModuleHolder(target).wants([piece.stretch.spec for piece in pieces], {}))
    assert sorted(wanted) == sorted(piece.stretch for piece in pieces)
    ModuleHolder(target).adopt([*pieces, Piece("exp_avg", "0.bias", (8,), 0, torch.zeros(8))], {})
    assert {name: parameter.data_ptr() for name, parameter in target.named_parameters()} == before
    for name, tensor in source.state_dict().items():
        assert torch.equal(target.state_dict()[name], tensor)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda saved: saved[1:], "the checkpoint lacks parameter/0.weight"),
        (lambda saved: [*saved, spec_of("parameter", "9.w", torch.zeros(2))], "no place for parameter/9.w"),
        (lambda saved: [spec_of("parameter", "0.weight", torch.zeros(8, 5)), *saved[1:]], r"\[8, 6\].*\[8, 5\]"),
        (lambda saved: [spec_of("parameter", "0.weight", torch.zeros(8, 6).half()), *saved[1:]], "float32.*float16"),
    ],
)
def test_what_does_not_fit_is_named(change, says):
    module = model_of()
    with pytest.raises(CheckpointError, match=says):
        list(ModuleHolder(module).wants(change(specs(module)), {}))


def test_extra_state_is_not_lost_silently():
    class Counting(nn.Module):
        def get_extra_state(self) -> int:
            return 3

    with pytest.raises(CheckpointError, match="_extra_state is extra state"):
        list(ModuleHolder(Counting()).pieces())


def test_names_are_those_of_the_users_module():
    module = nn.Linear(2, 2)
    assert unwrapped(torch.compile(module, backend="eager")) is module
