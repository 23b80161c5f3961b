"""Stock optimizers give and take their state; what does not fit is refused by name."""

from __future__ import annotations

import pytest
import torch
from ringdp.checkpoint import CheckpointError, Spec
from ringdp.checkpoint.optimizer import OptimizerHolder
from small_run import Run

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


def holder_of(run: Run) -> OptimizerHolder:
    return OptimizerHolder(run.optimizer, run.model)


def settings_with(**changes: object) -> dict:
    return {"optimizer": {**holder_of(Run()).settings()["optimizer"], **changes}}


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
def test_what_does_not_fit_is_named(spec, settings, says):
    run = Run()
    run.steps(1)
    with pytest.raises(CheckpointError, match=says):
        list(holder_of(run).wants([spec] if spec else [], settings))


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
        holder_of(run).settings()
