"""Shards from whole models and from the meta device; parameters find their wrapper as long as it lives."""

from __future__ import annotations

import gc
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks import HERE, on_ranks
from ringdp.ddp.wrapper import DistributedDataParallel
from ringdp.zero import registry
from ringdp.zero.sharded_model import Construction
from ringdp.zero.unit_storage import bucket_plans
from ringdp.zero.units import units_of
from small_models import fresh
from torch import nn
from unit_models import MODELS, WIDTH, Block
from zero_rig import same


def on_meta(kind: Any) -> nn.Module:
    with torch.device("meta"):
        return kind()


class Learned(nn.Module):
    """Its root, a recurrent layer and a BatchNorm begin in their own ways; a weight is shared, and a layer frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.place = nn.Parameter(torch.empty(WIDTH))
        self.reset_parameters()
        self.table = nn.Embedding(11, WIDTH)
        self.blocks = nn.ModuleList([Block(), Block()])
        self.recurrent = nn.GRU(WIDTH, WIDTH)
        self.norm = nn.BatchNorm1d(WIDTH)
        self.back = nn.Linear(WIDTH, 11)
        self.back.weight = self.table.weight
        self.frozen = nn.Linear(3, 3).requires_grad_(False)

    def reset_parameters(self) -> None:
        nn.init.uniform_(self.place)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.table(x) + self.place
        for block in self.blocks:
            h = block(h)
        return self.back(self.norm(self.recurrent(h)[0].flatten(0, 1)))


@pytest.mark.parametrize("init_sync", [True, False])
@on_ranks(3, [])
def test_a_meta_model_begins_as_if_it_had_been_built_whole(init_sync: bool) -> list[str]:
    """Names whose values are not those of the model built whole with this seed."""
    torch.manual_seed(5)
    whole = Learned()
    expected, after = whole.state_dict(), torch.get_rng_state()
    module = on_meta(Learned)
    torch.manual_seed(5 if init_sync is False or HERE.rank == 0 else 77)
    ddp = DistributedDataParallel(module, zero_stage=3, init_sync=init_sync)
    assert HERE.rank != 0 or torch.equal(after, torch.get_rng_state())
    found = ddp.full_state_dict()
    assert list(found) == list(expected) and module.back.weight is module.table.weight
    assert not module.frozen.weight.requires_grad
    wrong = [name for name in expected if not same(found[name], expected[name])]
    x = torch.arange(12).view(3, 4) % 11
    return wrong + ([] if same(ddp(x), whole(x)) else ["output"])


@on_ranks(2, [8, "Frozen", True])
def test_a_function_may_give_the_first_values() -> list[Any]:
    seen: list[str] = []

    def init(module: nn.Module) -> None:
        seen.append(type(module).__name__)
        for tensor in (*module.parameters(recurse=False), *module.buffers(recurse=False)):
            tensor.fill_(3)

    ddp = DistributedDataParallel(on_meta(MODELS["frozen"]), zero_stage=3, init=init)
    return [seen.count("Linear"), seen[0], all(bool((v == 3).all()) for v in ddp.full_state_dict().values())]


@pytest.mark.parametrize("meta", [True, False])
@on_ranks(2, [1, 6])
def test_at_most_one_unit_is_whole_at_a_time(meta: bool) -> list[int]:
    """The most units that had memory at a time while the model became shards, and how many there are.

    A block is open from its first parameter to its last.
    """
    most = 0

    class Counted(Construction):
        def _take(self, module: nn.Module) -> None:
            nonlocal most
            super()._take(module)
            most = max(most, len(self._open))

    module = on_meta(MODELS["stack"]) if meta else fresh(MODELS["stack"])
    units = units_of(module)
    plans = bucket_plans(units, dict(module.named_parameters()), HERE.size)

    def zeros(part: nn.Module) -> None:
        for parameter in part.parameters(recurse=False):
            parameter.zero_()

    Counted(module, units, plans, dist.group.WORLD, torch.device("cpu"), root=0, init=zeros).run()
    return [most, len(units)]


@on_ranks(3, [])
def test_rank_0_gives_the_values() -> list[str]:
    ddp = DistributedDataParallel(fresh(MODELS["types"], seed=HERE.rank), zero_stage=3)
    expected = fresh(MODELS["types"], seed=0).state_dict()
    return [n for n, v in ddp.full_state_dict().items() if not same(v, expected[n])]


@on_ranks(2, True)
def test_equal_values_need_no_rank_0() -> bool:
    ddp = DistributedDataParallel(fresh(MODELS["stack"], seed=3), zero_stage=3, init_sync=False)
    expected = fresh(MODELS["stack"], seed=3).state_dict()
    return all(same(v, expected[n]) for n, v in ddp.full_state_dict().items())


@on_ranks(2, error=("reset_parameters", "Frozen"))
def test_a_module_without_first_values_is_refused() -> None:
    module = on_meta(MODELS["frozen"])  # its root has parameters and buffers, and no reset_parameters()
    DistributedDataParallel(module, zero_stage=3)


@on_ranks(2, error="parameter scale is on the meta device")
def test_other_stages_refuse_meta_models() -> None:
    DistributedDataParallel(on_meta(MODELS["stack"]), zero_stage=2)


# Parameters find their wrapper as long as it lives, and others' optimizers are refused by name.


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
        with pytest.raises(RuntimeError, match=r"SGD cannot step parameters .* zero_stage=1; .*ringdp.ZeroOptimizer\("):
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
    with pytest.raises(RuntimeError, match=f"SGD cannot step parameters .* zero_stage={wrapper.zero_stage}"):
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
    with pytest.raises(RuntimeError, match=f"SGD cannot step parameters .* zero_stage={wrapper.zero_stage}"):
        optimizer.step()


@on_ranks(2, error="AdamW cannot step parameters of a DistributedDataParallel with zero_stage=3")
def test_an_optimizer_of_what_a_meta_model_had_is_refused() -> None:
    """Its parameters were replaced by those that have memory, and it would step nothing."""
    module = on_meta(MODELS["stack"])
    optimizer = torch.optim.AdamW(module.parameters())
    ddp = DistributedDataParallel(module, zero_stage=3, init=lambda part: None)
    assert ddp.zero_stage == 3
    optimizer.step()
