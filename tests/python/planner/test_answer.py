"""ringdp/planner/answer.py: figures by name, and what programs read."""

import json

import pytest
from ringdp.planner.answer import Answer, Figure, Table

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
