"""Parameters find their wrapper as long as it lives, and others' optimizers are refused by name."""

from __future__ import annotations

import gc
from types import SimpleNamespace

import pytest
import torch
from ringdp.zero import registry


class Wrapper(SimpleNamespace):
    """Anything with a zero_stage."""

    __hash__ = object.__hash__


def test_wrappers_are_found_and_forgotten():
    parameters = [torch.nn.Parameter(torch.ones(2)) for _ in range(3)]
    wrapper, other = Wrapper(zero_stage=2), Wrapper(zero_stage=2)
    registry.add(wrapper, parameters[:2])
    assert registry.one_wrapper_of(parameters[:2]) is wrapper and registry.wrapper_of(parameters[2]) is None
    assert registry.one_wrapper_of(parameters[2:]) is None
    registry.add(other, parameters[2:])
    with pytest.raises(ValueError, match="2 different wrappers"):
        registry.one_wrapper_of(parameters)
    del wrapper
    gc.collect()
    assert registry.wrapper_of(parameters[0]) is None


def test_other_optimizers_are_refused_at_their_first_step():
    parameter = torch.nn.Parameter(torch.ones(2))
    wrapper = Wrapper(zero_stage=1)
    registry.add(wrapper, [parameter])
    parameter.grad = torch.ones(2)
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    for _ in range(2):
        with pytest.raises(RuntimeError, match=r"SGD steps parameters .* zero_stage=1, .*ringdp.ZeroOptimizer\("):
            optimizer.step()
    assert torch.equal(parameter, torch.ones(2))
    free = torch.nn.Parameter(torch.ones(2))
    free.grad = torch.ones(2)
    torch.optim.SGD([free], lr=0.1).step()
    assert not torch.equal(free, torch.ones(2))
    assert wrapper.zero_stage == 1


def test_parameters_outside_the_wrapper_are_named():
    module = torch.nn.ParameterDict({"known": torch.ones(2), "ignored": torch.ones(3)})
    wrapper = Wrapper(zero_stage=1, module=module)
    registry.add(wrapper, [module["known"]])
    with pytest.raises(ValueError, match=r"parameter ignored is not averaged .* an optimizer of their own"):
        registry.one_wrapper_of(module.values())
    strangers = [torch.nn.Parameter(torch.ones(4, 5)), torch.nn.Parameter(torch.ones(1))]
    with pytest.raises(ValueError, match=r"parameter of shape \[4, 5\] and 1 more are not averaged"):
        registry.one_wrapper_of([module["known"], *strangers])


def stepping() -> tuple[torch.nn.Parameter, torch.optim.Optimizer]:
    """With an optimizer that has stepped, and has been looked at."""
    parameter = torch.nn.Parameter(torch.ones(2))
    parameter.grad = torch.ones(2)
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    optimizer.step()
    return parameter, optimizer


def test_an_optimizer_that_has_stepped_is_refused_once_its_model_is_wrapped():
    elsewhere, wrapper = Wrapper(zero_stage=1), Wrapper(zero_stage=2)
    registry.add(elsewhere, [torch.nn.Parameter(torch.ones(1))])
    parameter, optimizer = stepping()
    registry.add(wrapper, [parameter])
    with pytest.raises(RuntimeError, match=f"SGD steps parameters .* zero_stage={wrapper.zero_stage}"):
        optimizer.step()


@pytest.mark.parametrize("in_a_group_of_its_own", [True, False])
def test_parameters_that_are_added_after_a_step_are_looked_at(in_a_group_of_its_own):
    sharded = torch.nn.Parameter(torch.ones(2))
    wrapper = Wrapper(zero_stage=2)
    registry.add(wrapper, [sharded])
    _, optimizer = stepping()
    if in_a_group_of_its_own:
        optimizer.add_param_group({"params": [sharded]})
    else:
        optimizer.param_groups[0]["params"].append(sharded)
    with pytest.raises(RuntimeError, match=f"SGD steps parameters .* zero_stage={wrapper.zero_stage}"):
        optimizer.step()
