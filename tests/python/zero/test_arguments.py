"""What a ZeroOptimizer is asked for: each impossible wish is refused by name, and the next one starts clean."""

from __future__ import annotations

import warnings
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from ranks import HERE
from ringdp.ddp.wrapper import DistributedDataParallel
from ringdp.zero.arguments import check_choices, check_gather, check_parameters
from ringdp.zero.optimizer import ZeroOptimizer
from small_models import group_of, loss_of
from zero_rig import ADAMW, model, wrapped


def optimizer_for(ddp: Any, kind: str = "AdamW", given: dict[str, Any] | None = None, **own: Any) -> ZeroOptimizer:
    return ZeroOptimizer(ddp.parameters(), getattr(torch.optim, kind), **own, **(ADAMW if given is None else given))


def given_twice(stage: int) -> ZeroOptimizer:
    ddp = wrapped(stage)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch steps it twice, and says that it will not for ever
        return ZeroOptimizer([*ddp.parameters(), ddp.module[2].bias], torch.optim.AdamW)


def tied(module: torch.nn.Module) -> torch.nn.Module:
    module[2].bias.data = module[0].bias.data
    return module


def sharing_memory(stage: int) -> ZeroOptimizer:
    return optimizer_for(DistributedDataParallel(tied(model()), zero_stage=stage))


def thawed(stage: int) -> ZeroOptimizer:
    module = model()
    module[2].requires_grad_(False)
    ddp = DistributedDataParallel(module, zero_stage=stage)
    module[2].requires_grad_(True)
    return optimizer_for(ddp)


def refusals() -> list[str]:
    """On a rank: what is said."""
    said = []
    ddp = wrapped(2)
    attempts = [
        lambda: optimizer_for(ddp, "LBFGS", {}),
        lambda: optimizer_for(ddp, master_dtype=torch.float16),
        lambda: optimizer_for(ddp, given={"lr": -1}),
        lambda: optimizer_for(ddp, process_group=group_of("gloo")),
        lambda: optimizer_for(wrapped(1), overlap_with_ddp=True),
        lambda: (optimizer_for(ddp), optimizer_for(ddp)),
        lambda: optimizer_for(wrapped(1), gather="backward"),
        lambda: optimizer_for(model(), gather="forward"),
        lambda: optimizer_for(wrapped(0), gather="forward"),
        lambda: optimizer_for(wrapped(3), gather="forward"),
        *(lambda stage=stage: given_twice(stage) for stage in (1, 2, 3)),
        *(lambda stage=stage: sharing_memory(stage) for stage in (1, 2, 3)),
        lambda: optimizer_for(tied(model())),
        *(lambda stage=stage: thawed(stage) for stage in (1, 2, 3)),
    ]
    for attempt in attempts:
        kept: list[Any] = []
        try:
            kept.append(attempt())
        except (ValueError, NotImplementedError) as error:
            said.append(str(error))
    optimizer = optimizer_for(wrapped(1))
    try:
        optimizer.state_dict()
    except RuntimeError as error:
        said.append(str(error))
    return said


def test_what_is_refused_is_named(trio):
    wanted = ["LBFGS", "master_dtype=torch.float16", "learning rate", "process_group", "at stage 1", "one already"]
    wanted += ["gather='backward'", "without a ringdp.", "without a ringdp.", "at stage 3"]
    wanted += ["parameter 2.bias is given twice"] * 3 + ["0.bias and 2.bias share memory"] * 3
    wanted += ["parameter 1 of shape [96] and parameter 3 of shape [96] share"]
    wanted += ["parameter 2.weight was frozen when the model was wrapped"] * 3
    for said in trio.run(refusals):
        assert len(said) == len(wanted) + 1
        for text, word in zip(said, [*wanted, "consolidate_state_dict"], strict=True):
            assert word in text


def test_choices_and_parameters_are_checked_without_a_group():
    check_choices(torch.optim.SGD, None)
    check_choices(torch.optim.SGD, torch.float32)
    with pytest.raises(ValueError, match="bfloat16, must be"):
        check_choices(torch.optim.SGD, torch.bfloat16)
    dense = torch.ones(2, 3)
    check_parameters([dense], None)
    with pytest.raises(ValueError, match=r"shape \[2, 3\] has layout torch.sparse_coo"):
        check_parameters([dense, dense.to_sparse()], None)


@pytest.mark.filterwarnings("ignore:.*jit.script.*")
def test_a_model_whose_parts_call_no_hooks_cannot_wait():
    scripted = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.jit.script(torch.nn.Linear(2, 2)))
    wrapper = SimpleNamespace(zero_stage=1, module=scripted)
    check_gather("step", wrapper)
    check_gather("forward", SimpleNamespace(zero_stage=1, module=scripted[0]))
    with pytest.raises(NotImplementedError, match="module 1 is a ScriptModule"):
        check_gather("forward", wrapper)


def thawed_later(stage: int) -> list[str]:
    """On a rank: errors of a step when a layer that was frozen when the model was wrapped has a gradient, and none."""
    module = model()
    module[2].requires_grad_(False)
    ddp = DistributedDataParallel(module, zero_stage=stage)
    optimizer, said = optimizer_for(ddp), []
    for frozen in (True, False):
        module[2].requires_grad_(not frozen)
        try:
            loss_of(ddp, HERE.rank, 0, 0).backward()
            optimizer.step()
            said.append("")
        except RuntimeError as error:
            said.append(str(error))
        optimizer.zero_grad()
    return said


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_a_layer_that_is_thawed_after_the_wrapper_is_named(pair, stage):
    for frozen, thawed in pair.run(thawed_later, stage):
        assert frozen == "" and "parameter 2.weight was frozen when the model was wrapped" in thawed
