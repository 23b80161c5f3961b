"""Stage 3's layouts: every sharded parameter in one bucket, of its unit, dtype and kind."""

from __future__ import annotations

import pytest
from ringdp.zero.bucket_plan import bucket_plans
from ringdp.zero.units import units_of
from unit_models import MODELS


@pytest.mark.parametrize("kind", MODELS)
def test_every_parameter_has_one_place(kind):
    model = MODELS[kind]()
    named, units = dict(model.named_parameters()), units_of(model)
    plans = bucket_plans(units, named, 3)
    assert sorted(n for p in plans for n in p.names) == sorted(n for u in units for n in u.parameters)
    for plan in plans:
        assert set(plan.names) <= set(units[plan.unit].parameters)
        assert len({named[n].dtype for n in plan.names}) == 1
        assert {named[n].requires_grad for n in plan.names} == {plan.trainable}


@pytest.mark.parametrize("kind", ["frozen", "types"])
def test_numbers_are_those_of_the_reducer(kind):
    """It is given the trainable parameters in the model's order."""
    model = MODELS[kind]()
    named = dict(model.named_parameters())
    trainable = [n for n, p in named.items() if p.requires_grad]
    for plan in bucket_plans(units_of(model), named, 2):
        if plan.trainable:
            members = plan.layout.buckets[plan.number]
            assert tuple(trainable[m] for m in members) == plan.names
            assert plan.layout.padded(plan.number) >= sum(named[n].numel() for n in plan.names)


def test_the_last_units_come_first():
    model = MODELS["stack"]()
    units = [p.unit for p in bucket_plans(units_of(model), dict(model.named_parameters()), 2)]
    assert units == sorted(units, reverse=True)
