"""Questions and answers: inputs from text, defaults, what is refused by name; figures, and what programs read."""

from __future__ import annotations

import json

import pytest
from ringdp.tools.planner.question import Answer, Figure, Input, InputError, Kind, Table
from ringdp.tools.planner.units import whole

ANSWER = Answer(
    (Figure("length", 3.0, "s", "measured"), Figure("fits", None)),
    (Table("rows", (("rank", ""), ("size", "bytes")), ((0, 5),)),),
    ("go on",),
    ("mind the gap",),
    (("more", Answer((Figure("inner", True),))),),
)


def test_figures_by_name():
    assert ANSWER["length"] == 3.0 and ANSWER["fits"] is None
    with pytest.raises(StopIteration):
        ANSWER["width"]


def test_json_has_every_part_and_each_name_as_a_key_once():
    report = json.loads(json.dumps(ANSWER.as_json()))
    assert report["results"] == {"length": 3.0, "fits": None}
    assert report["figures"][0] == {"figure": "length", "unit": "s", "source": "measured"}
    assert report["tables"] == [{"title": "rows", "columns": [["rank", ""], ["size", "bytes"]], "rows": [[0, 5]]}]
    assert (report["advice"], report["warnings"]) == (["go on"], ["mind the gap"])
    assert report["sections"]["more"]["results"] == {"inner": True}


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
