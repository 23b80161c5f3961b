"""Holders of modules and of stock optimizers, and of both together."""

from __future__ import annotations

import pytest
import torch
from ringdp.checkpoint import CheckpointError, Holder, Spec
from ringdp.checkpoint.holders import Combined, ModuleHolder, OptimizerHolder, holder_of, unwrapped
from ringdp.checkpoint.piece import Piece, spec_of
from small_run import Run, model_of
from states import Sharded, odd_state
from torch import nn


def test_who_is_a_holder():
    module = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    held = ModuleHolder(module)
    for holder in (held, OptimizerHolder(optimizer, module), Combined(held), Sharded({}, 0, 1, 0)):
        assert isinstance(holder, Holder)
    for other in (module, optimizer, {}):
        assert not isinstance(other, Holder)


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


CASES = {
    "sgd": (torch.optim.SGD, {"momentum": 0.9, "nesterov": True}),
    "plain sgd": (torch.optim.SGD, {}),
    "adam": (torch.optim.Adam, {"amsgrad": True}),
    "adamw": (torch.optim.AdamW, {"betas": (0.8, 0.99)}),
    "nadam": (torch.optim.NAdam, {}),
    "adagrad": (torch.optim.Adagrad, {}),
    "rmsprop": (torch.optim.RMSprop, {"momentum": 0.5, "centered": True}),
}


def handed_over(source: Run, target: Run) -> None:
    giver, taker = (OptimizerHolder(run.optimizer, run.model) for run in (source, target))
    pieces = list(giver.pieces())
    wanted = list(taker.wants([piece.stretch.spec for piece in pieces], giver.settings()))
    assert wanted == [piece.stretch for piece in pieces]
    taker.adopt(pieces, giver.settings())


@pytest.mark.parametrize("stepped", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_the_state_is_handed_over(case, stepped):
    make, settings = CASES[case]
    source, target = Run(make, **settings), Run(make, **settings)
    source.steps(2)
    target.steps(int(stepped))
    handed_over(source, target)
    found, expected = target.optimizer.state_dict(), source.optimizer.state_dict()
    assert found["param_groups"] == expected["param_groups"]
    assert found["state"].keys() == expected["state"].keys()
    for index, values in expected["state"].items():
        assert found["state"][index].keys() == values.keys()
        for key, value in values.items():
            other = found["state"][index][key]
            assert torch.equal(other, value) if isinstance(value, torch.Tensor) else other == value


def test_a_state_that_was_not_saved_does_not_stay():
    source, target = Run(), Run()
    target.steps(1)
    handed_over(source, target)
    assert target.optimizer.state_dict()["state"] == {}


def test_how_a_step_is_computed_stays_the_running_optimizers_choice():
    source, target = Run(foreach=True), Run(foreach=False)
    source.steps(1)
    handed_over(source, target)
    assert target.optimizer.param_groups[0]["foreach"] is False


def test_a_learning_rate_in_a_tensor_stays_one():
    source, target = Run(), Run()
    target.optimizer.param_groups[0]["lr"] = held = torch.tensor(9.0)
    handed_over(source, target)
    assert target.optimizer.param_groups[0]["lr"] is held
    assert held.item() == pytest.approx(0.01)
    handed_over(target, source)
    assert source.optimizer.param_groups[0]["lr"] == held.item()


def optimizer_holder(run: Run) -> OptimizerHolder:
    return OptimizerHolder(run.optimizer, run.model)


def settings_with(**changes: object) -> dict:
    return {"optimizer": {**optimizer_holder(Run()).settings()["optimizer"], **changes}}


@pytest.mark.parametrize(
    ("spec", "settings", "says"),
    [
        (None, {}, "no optimizer's state"),
        (None, settings_with(algorithm="SGD"), "checkpoint is of SGD, this optimizer is AdamW"),
        (None, settings_with(groups=[]), "0 parameter groups, this optimizer 1"),
        (None, settings_with(groups=[{"names": ["0.weight"]}]), "group 0 has 0.bias only in this optimizer"),
        (Spec("exp_avg", "9.bias", (8,), "float32"), settings_with(), "no parameter for exp_avg/9.bias"),
        (Spec("exp_avg", "0.bias", (9,), "float32"), settings_with(), r"\[8\].*\[9\]"),
    ],
)
def test_what_does_not_fit_is_named_optimizer(spec, settings, says):
    run = Run()
    run.steps(1)
    with pytest.raises(CheckpointError, match=says):
        list(optimizer_holder(run).wants([spec] if spec else [], settings))


def test_a_parameter_that_is_not_the_models_is_named():
    stranger = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    with pytest.raises(CheckpointError, match="parameter 0 of the optimizer's group 0 is not in the model"):
        OptimizerHolder(stranger, Run().model)


def test_a_state_that_is_no_tensor_is_refused_by_name():
    run = Run(torch.optim.LBFGS)

    def closure() -> torch.Tensor:
        run.optimizer.zero_grad()
        loss = run.model(torch.ones(4, 6)).square().sum()
        loss.backward()
        return loss

    run.optimizer.step(closure)
    with pytest.raises(CheckpointError, match="LBFGS cannot be saved"):
        optimizer_holder(run).settings()


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
