"""Which parameters are gathered together: by default, by choice, and shared ones."""

from __future__ import annotations

from collections import OrderedDict

import pytest
from ringdp.zero.units import Unit, units_of
from torch import nn
from unit_models import MODELS, Block


def names(model: nn.Module, **arguments: object) -> list[str]:
    units = units_of(model, **arguments)
    whole = sum(p.numel() for n, p in model.named_parameters() if p.is_floating_point())
    assert sum(u.elements for u in units) == whole
    assert sum(len(u.parameters) for u in units) == sum(p.is_floating_point() for p in model.parameters())
    return [u.name for u in units]


class Call(nn.Module):
    """Children by name, with a forward."""

    def __init__(self, **children: nn.Module) -> None:
        super().__init__()
        for name, child in children.items():
            self.add_module(name, child)

    def forward(self, x: object) -> object:
        return x


def test_a_model_without_containers_is_one_unit():
    assert names(Call(a=nn.Linear(3, 3), b=nn.Linear(3, 3))) == ["(model)"]


def test_blocks_and_what_lies_beside_them_are_units():
    assert names(MODELS["stack"]()) == ["(model)", "first", "blocks.0", "blocks.1", "blocks.2", "last"]


def test_a_sequential_is_its_children():
    assert names(nn.Sequential(Block(4), nn.Tanh(), Block(4))) == ["0", "2"]


def test_only_what_holds_most_of_the_model_is_divided_further():
    inner = Call(layers=nn.ModuleList([Block(8), Block(8)]), norm=nn.LayerNorm(8))
    assert names(Call(inner=inner, head=nn.Linear(8, 2))) == ["inner.layers.0", "inner.layers.1", "inner.norm", "head"]
    small = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    assert names(Call(small=small, large=nn.Linear(50, 50))) == ["small", "large"]


def test_what_nobody_calls_is_divided_at_any_size():
    """A list has no forward, so its hooks would never run."""
    parts = nn.ModuleDict({"x": nn.Linear(2, 2), "y": nn.ParameterList([nn.Parameter(nn.Linear(2, 2).weight)])})
    model = Call(parts=parts, large=nn.Linear(50, 50))
    assert names(model) == ["(model)", "parts.x", "large"]
    assert units_of(model)[0].parameters == ("parts.y.0",)


def test_modules_and_classes_may_be_chosen():
    model = MODELS["stack"]()
    assert names(model, chosen=[]) == ["(model)"]
    assert names(model, chosen=[Block]) == ["(model)", "blocks.0", "blocks.1", "blocks.2"]
    nested = names(model, chosen=[model.blocks[1], model.blocks[1].mix])
    assert nested == ["(model)", "blocks.1", "blocks.1.mix"]


def test_shared_parameters_belong_to_the_first_and_are_needed_by_all():
    model = MODELS["tied"]()
    by_name = {u.name: u for u in units_of(model)}
    assert by_name["blocks.0"].modules == ("blocks.0", "back")
    assert "back" not in by_name
    twice = nn.Linear(3, 3)
    shared = Call(a=nn.Sequential(OrderedDict(x=twice)), b=Call(y=twice, z=nn.Linear(9, 9)))
    units = {u.name: u for u in units_of(shared)}
    assert units["a"].modules == ("a", "b.y")


def test_a_module_that_is_there_twice_is_one_unit():
    layer = nn.Linear(4, 4)
    assert [u.modules for u in units_of(nn.Sequential(layer, nn.Tanh(), layer))] == [("0",)]


def test_integers_and_ignored_parameters_stay_whole():
    units = units_of(MODELS["frozen"](), ignored={"scale"})
    assert not {"scale", "steps"} & {name for unit in units for name in unit.parameters}


def test_units_can_be_printed():
    assert str(Unit("blocks.0", ("a", "b"), ("blocks.0",), 1234)) == "blocks.0: 1,234 elements in 2 parameters"


@pytest.mark.parametrize(
    ("chosen", "error", "named"),
    [
        ([nn.Conv2d], ValueError, "Conv2d"),
        ([nn.Linear(3, 3)], ValueError, "Linear"),
        ([nn.ModuleList], ValueError, "blocks has no forward"),
        (["blocks.0"], TypeError, "'blocks.0'"),
        ([int], TypeError, "int"),
        (Block, TypeError, "must be a list"),
    ],
    ids=str,
)
def test_a_bad_choice_is_named(chosen, error, named):
    with pytest.raises(error, match=named):
        units_of(MODELS["stack"](), chosen)
