"""ringdp/planner/kind.py: inputs from text, defaults, and what is refused by name."""

import pytest
from ringdp.planner.answer import Answer, Figure
from ringdp.planner.kind import Input, InputError, Kind
from ringdp.planner.units import whole

KIND = Kind(
    "area",
    "of a field",
    (Input("long_side", whole, "metres"), Input("short_side", whole, "metres", "2"), Input("tax", whole, "", "")),
    lambda long_side, short_side, tax: Answer((Figure("area", long_side * short_side), Figure("tax", tax))),
    "area --long-side 3",
)


def test_defaults_are_parsed_like_what_is_typed():
    answer = KIND.ask({"long_side": "1K"})
    assert (answer["area"], answer["tax"]) == (2000, None)
    assert KIND.ask({"long_side": "3", "tax": "7"})["tax"] == 7


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({}, "area needs --long-side; for example: ringdp plan area --long-side 3"),
        ({"long_side": "x"}, "--long-side: 'x' is not a number"),
        ({"long_side": "3", "short_side": ""}, "--short-side: a value is needed"),
        ({"long_side": "3", "depth": "1"}, "no input 'depth': it has long_side, short_side, tax"),
    ],
)
def test_what_is_wrong_is_named(given, named):
    with pytest.raises(InputError) as refusal:
        KIND.ask(given)
    assert named in str(refusal.value)
