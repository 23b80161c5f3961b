"""What a ZeroOptimizer and a model at stage 3 refuse by name, before anything moves."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from ranks import HERE, error_of, on_ranks
from ringdp.ddp.wrapper import DistributedDataParallel
from ringdp.zero.arguments import check_choices, check_gather, check_parameters
from ringdp.zero.optimizer import ZeroOptimizer
from ringdp.zero.refusals import check_module, check_no_aliases, has_meta
from small_models import group_of, loss_of
from torch import nn
from torch.nn.utils import parametrizations
from unit_models import MODELS
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


def beside_a_buffer(stage: int) -> ZeroOptimizer:
    module = model()
    module.register_buffer("shadow", module[0].bias.data)
    return optimizer_for(DistributedDataParallel(module, zero_stage=stage))


def thawed(stage: int) -> ZeroOptimizer:
    module = model()
    module[2].requires_grad_(False)
    ddp = DistributedDataParallel(module, zero_stage=stage)
    module[2].requires_grad_(True)
    return optimizer_for(ddp)


@on_ranks(3)
def test_what_is_refused_is_named() -> None:
    ddp = wrapped(2)
    refused = {
        lambda: optimizer_for(ddp, "LBFGS", {}): "LBFGS",
        lambda: optimizer_for(ddp, master_dtype=torch.float16): "master_dtype=torch.float16",
        lambda: optimizer_for(ddp, given={"lr": -1}): "learning rate",
        lambda: optimizer_for(ddp, process_group=group_of("gloo")): "process_group",
        lambda: optimizer_for(wrapped(1), overlap_with_ddp=True): "at stage 1",
        lambda: (optimizer_for(ddp), optimizer_for(ddp)): "one already",
        lambda: optimizer_for(wrapped(1), gather="backward"): "gather='backward'",
        lambda: optimizer_for(model(), gather="forward"): "without a ringdp.",
        lambda: optimizer_for(wrapped(0), gather="forward"): "without a ringdp.",
        lambda: optimizer_for(wrapped(3), gather="forward"): "at stage 3",
        lambda: optimizer_for(tied(model())): "parameter 1 of shape [96] and parameter 3 of shape [96] share",
    }
    at_stages = {
        given_twice: "parameter 2.bias is given twice",
        sharing_memory: "0.bias and 2.bias share memory",
        beside_a_buffer: "0.bias and shadow share memory",
        thawed: "parameter 2.weight was frozen when the model was wrapped",
    }
    refused |= {partial(make, stage): why for make, why in at_stages.items() for stage in (1, 2, 3)}
    for attempt, why in refused.items():
        assert why in error_of(attempt, kind=(ValueError, NotImplementedError))
    optimizer = optimizer_for(wrapped(1))
    assert "consolidate_state_dict" in error_of(optimizer.state_dict)


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


@pytest.mark.parametrize("stage", [1, 2, 3])
@on_ranks(2)
def test_a_layer_that_is_thawed_after_the_wrapper_is_named(stage: int) -> None:
    module = model()
    module[2].requires_grad_(False)
    ddp = DistributedDataParallel(module, zero_stage=stage)
    optimizer = optimizer_for(ddp)
    loss_of(ddp, HERE.rank, 0, 0).backward()
    optimizer.step()
    optimizer.zero_grad()
    module[2].requires_grad_(True)
    with pytest.raises(RuntimeError, match="parameter 2.weight was frozen when the model was wrapped"):
        loss_of(ddp, HERE.rank, 0, 0).backward()
        optimizer.step()
    optimizer.zero_grad()


def frozen() -> nn.Module:
    return nn.Linear(2, 2).requires_grad_(False)


def compiled_in_place() -> nn.Module:
    layer = nn.Linear(2, 2)
    layer.compile()
    return layer


CASES: list[tuple[Callable[[], nn.Module], str]] = [
    (lambda: nn.Sequential(nn.LazyLinear(3)), "0.weight of a lazy module"),
    (lambda: nn.Sequential(nn.Embedding(5, 3, sparse=True)), "module 0 has sparse gradients"),
    (lambda: nn.Sequential(nn.EmbeddingBag(5, 3, sparse=True)), "module 0 has sparse gradients"),
    (lambda: nn.Sequential(nn.Tanh(), parametrizations.weight_norm(nn.Linear(2, 2))), "module 1 has parametrizations"),
    (lambda: nn.Sequential(torch.compile(nn.Linear(2, 2))), "module 0 is compiled"),
    (lambda: nn.Sequential(compiled_in_place()), "module 0 is compiled"),
    (lambda: nn.Sequential(torch.jit.script(nn.Linear(2, 2))), "module 0 is a ScriptModule"),
    (frozen, "no parameter requires a gradient"),
    (lambda: nn.Sequential(nn.Linear(2, 2), nn.Embedding(3, 2, device="meta")), ""),
]


@pytest.mark.parametrize(("make", "named"), CASES, ids=[named for _, named in CASES])
@pytest.mark.filterwarnings("ignore:.*jit.script.*")
def test_it_is_named(make, named):
    if not named:
        check_module(make(), None, frozenset())
        return
    with pytest.raises(NotImplementedError, match=named):
        check_module(make(), None, frozenset())


def test_what_stays_whole_may_be_anything():
    model = nn.Sequential(nn.Linear(2, 2), frozen())
    check_module(model, None, frozenset({"1.weight", "1.bias"}))


@pytest.mark.parametrize("kind", MODELS)
def test_the_rest_is_accepted(kind):
    check_module(MODELS[kind](), None, frozenset())


def test_meta_modules_need_first_values():
    model = MODELS["frozen"]().to("meta")
    assert has_meta(model) and not has_meta(nn.Linear(2, 2))
    with pytest.raises(ValueError, match=r"the model .Frozen. is on the meta device"):
        check_module(model, None, frozenset())
    check_module(model, lambda module: None, frozenset())


def test_a_parameter_of_which_one_name_is_ignored_is_named():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model[1].weight = model[0].weight
    check_module(model, None, frozenset({"0.weight", "1.weight"}))
    with pytest.raises(NotImplementedError, match=r"parameter 0\.weight is also 1\.weight"):
        check_module(model, None, frozenset({"0.weight"}))


BASE = torch.empty(6, 8)
MEMORY: list[tuple[torch.Tensor, torch.Tensor, bool]] = [
    (BASE, BASE.view(48), True),
    (BASE[:3], BASE[3:], False),
    (BASE[:4], BASE[3:], True),
    (BASE[:, :4], BASE[:, 4:], False),
    (BASE[:, :5], BASE[:, 4:], True),
    (BASE.t(), BASE[5, 7:], True),
    (BASE.view(torch.float64)[:, :2], BASE[:, 4:], False),
    (BASE.view(torch.float64)[:, :2], BASE[:, 3:], True),
    (BASE, BASE[:0], False),
    (BASE, torch.empty(6, 8), False),
    (BASE.to("meta")[:, :4], BASE.to("meta")[:, 3:], False),
]


def test_shared_memory_is_named_where_elements_are_shared():
    on_meta = BASE.to("meta")
    for first, second, shared in (*MEMORY, (on_meta[:3], on_meta[2:], True), (on_meta[:3], on_meta[3:], False)):
        for moving in ([first], [second], [first, second]):
            found = ""
            try:
                check_no_aliases(moving, [("a", first), ("b", second)], "somebody")
            except NotImplementedError as error:
                found = str(error)
            assert ("and" in found) == shared, (first.shape, second.shape)
    check_no_aliases([torch.ones(2)], [("a", BASE), ("b", BASE[:1])], "nobody moves")
    check_no_aliases([BASE], [("a", BASE), ("the same", BASE)], "tied")


def tied_by_memory() -> nn.Module:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    model[1].weight.data = model[0].weight.data
    return model


def test_stage_3_names_shared_memory_before_anything_moves():
    model = tied_by_memory()
    with pytest.raises(NotImplementedError, match=r"0\.weight and 1\.weight share memory"):
        check_module(model, None, frozenset())
    check_module(model, None, frozenset({"0.weight", "1.weight"}))
    model[1].weight = model[0].weight
    check_module(model, None, frozenset())
    model.register_buffer("shadow", model[0].bias.data[:1])
    with pytest.raises(NotImplementedError, match=r"(shadow and 0\.bias|0\.bias and shadow) share memory"):
        check_module(model, None, frozenset())
