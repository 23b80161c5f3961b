"""What stage 3 cannot shard is named."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from ringdp.zero.refusals import check_apart, check_module, has_meta
from torch import nn
from torch.nn.utils import parametrizations
from unit_models import MODELS


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
                check_apart(moving, [("a", first), ("b", second)], "somebody")
            except NotImplementedError as error:
                found = str(error)
            assert ("and" in found) == shared, (first.shape, second.shape)
    check_apart([torch.ones(2)], [("a", BASE), ("b", BASE[:1])], "nobody moves")
    check_apart([BASE], [("a", BASE), ("the same", BASE)], "tied")


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
