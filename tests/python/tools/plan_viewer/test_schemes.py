"""The schemes that can be shown: every plan of the recorder, asked for as its name says."""

from __future__ import annotations

import pytest
from ringdp.tools.plan_viewer.schemes import SCHEMES, hosts_of, record

RECORDED_AS = {"arena/one-shot": "arena", "arena/one-pass": "one pass"}


@pytest.mark.parametrize("name", SCHEMES)
def test_the_recorder_knows_it_by_this_name(name: str) -> None:
    plans = record(SCHEMES[name], 4, 4)
    assert [plan["rank"] for plan in plans] == [0, 1, 2, 3]
    assert {plan["algorithm"] for plan in plans} == {RECORDED_AS.get(name, name)}


def test_an_arena_in_stages_has_owners_and_one_shot_has_none() -> None:
    folds = {
        name: [
            [step["bytes"] for channel in plan["channels"] for step in channel["steps"] if step["verb"] == "fold"]
            for plan in record(SCHEMES[name], 4, 4)
        ]
        for name in ("arena/one-shot", "arena", "arena/one-pass")
    }
    assert folds == {"arena/one-shot": [[16]] * 4, "arena": [[4]] * 4, "arena/one-pass": [[128]] * 4}


def test_hosts_of_two_ranks() -> None:
    assert hosts_of(SCHEMES["hierarchy"], 5) == [0, 2, 4]
    assert hosts_of(SCHEMES["ring"], 5) == [0]
