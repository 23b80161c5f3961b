"""Whoever knows about shards speaks for the parameters; the rest is wrapped."""

from __future__ import annotations

import pytest
import torch
from ringdp.checkpoint import CheckpointError
from ringdp.checkpoint.combined import Combined, holder_of
from ringdp.checkpoint.module import ModuleHolder
from small_run import Run
from states import Sharded, odd_state
from torch import nn


def kinds(holder) -> set[str]:
    return {piece.kind for piece in holder.pieces()}


def test_a_module_and_a_stock_optimizer():
    run = Run()
    run.steps(1)
    assert kinds(holder_of(run.model, run.optimizer, 0)) == {"parameter", "buffer", "step", "exp_avg", "exp_avg_sq"}
    assert kinds(holder_of(run.model, run.optimizer, 1)) == {"parameter", "step", "exp_avg", "exp_avg_sq"}
    assert kinds(holder_of(run.model, None, 0)) == {"parameter", "buffer"}
    assert set(holder_of(run.model, run.optimizer, 0).settings()) == {"optimizer"}


def test_a_sharded_optimizer_has_the_parameters():
    sharded = Sharded({("parameter", "w"): torch.zeros(3)}, 0, 1, 0)
    pieces = list(holder_of(Run().model, sharded, 0).pieces())
    assert {piece.name for piece in pieces if piece.kind == "parameter"} == {"w"}
    assert any(piece.kind == "buffer" for piece in pieces)


class Unnamed:
    """A sharded optimizer that knows parameters, not names."""

    def __init__(self, parameters: list[torch.Tensor]) -> None:
        self.parameters = parameters

    def holder(self, names) -> Sharded:
        return Sharded({("parameter", names[p]): p.detach() for p in self.parameters}, 0, 1, 0)


def test_a_sharded_optimizer_is_told_the_names():
    model = Run().model
    pieces = list(holder_of(model, Unnamed(list(model.parameters())), 0).pieces())
    names = {piece.name for piece in pieces if piece.kind == "parameter"}
    assert names == {name for name, _ in model.named_parameters()}


def test_a_holder_stands_for_itself():
    sharded = Sharded(odd_state(1), 0, 1, 0)
    assert holder_of(sharded, None, 0) is sharded


def test_each_holder_takes_its_own():
    source, target = Run(), Run()
    source.steps(2)
    giver, taker = (holder_of(run.model, run.optimizer, 0) for run in (source, target))
    pieces = list(giver.pieces())
    assert sorted(taker.wants([piece.stretch.spec for piece in pieces], giver.settings())) == sorted(
        piece.stretch for piece in pieces
    )
    taker.adopt(pieces, giver.settings())
    for name, tensor in source.everything().items():
        assert torch.equal(target.everything()[name], tensor), name


@pytest.mark.parametrize("model", [{"w": 1}, None])
def test_what_is_no_model_is_named(model):
    with pytest.raises(CheckpointError, match=f"the model is a {type(model).__name__}"):
        holder_of(model, None, 0)


def test_what_is_no_optimizer_is_named():
    with pytest.raises(CheckpointError, match="the optimizer is a dict"):
        holder_of(nn.Linear(1, 1), {}, 0)
    combined = Combined(ModuleHolder(nn.Linear(1, 1)))
    with pytest.raises(CheckpointError, match="the optimizer is a SGD"):
        holder_of(combined, torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=1.0), 0)
