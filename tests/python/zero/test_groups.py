"""Param groups of pieces: the settings of those of whole parameters, in both directions."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from ringdp.zero.groups import check_members, hand_on, numbered, of_pieces, settings
from ringdp.zero.optimizer import ZeroOptimizer
from zero_rig import ADAMW, steps, wrapped


def test_a_group_of_pieces_has_the_pieces_of_its_parameters_and_all_settings():
    whole = [torch.ones(4), torch.ones(6)]
    parts = [torch.ones(2), torch.ones(3), torch.ones(1)]
    pieces = [SimpleNamespace(parameter=0), SimpleNamespace(parameter=1), SimpleNamespace(parameter=1)]
    flat = SimpleNamespace(parameters=whole, pieces=pieces, tensors=parts)
    made = of_pieces({"params": [whole[1]], "param_names": ["b"], "lr": 0.5}, [flat])
    assert made["lr"] == 0.5 and "param_names" not in made
    assert [id(t) for t in made["params"]] == [id(t) for t in parts[1:]]


def test_settings_are_handed_on_and_parameters_stay():
    outer, inner = [{"params": [1], "lr": 0.1, "initial_lr": 0.2}], [{"params": [2], "lr": 0.3}]
    hand_on(outer, inner)
    assert inner == [{"params": [2], "lr": 0.1, "initial_lr": 0.2}]
    assert settings(inner[0]) == {"lr": 0.1, "initial_lr": 0.2}


def test_groups_are_numbered_as_in_torchs_state_dicts():
    parameters = [torch.nn.Parameter(torch.ones(1)) for _ in range(3)]
    optimizer = torch.optim.SGD([{"params": [("a", parameters[0]), ("b", parameters[1])]}], lr=0.1)
    optimizer.add_param_group({"params": [("c", parameters[2])], "lr": 1.0})
    assert numbered(optimizer.param_groups) == optimizer.state_dict()["param_groups"]


def test_members_may_change_places_and_nothing_else():
    a, b = torch.ones(2), torch.ones(3)
    check_members([{"params": [b, a]}], [[a, b]])
    for groups, said in (
        ([{"params": [a]}], r"of shape \[3\] was taken out of param group 0"),
        ([{"params": [a, b, torch.ones(4)]}], r"of shape \[4\] was put into param group 0"),
        ([], "has 0 param groups, and was made with 1"),
    ):
        with pytest.raises(RuntimeError, match=said):
            check_members(groups, [[a, b]])


def with_fewer(stage: int, overlap: bool) -> list[str]:
    """On a rank: what steps and state dicts say of a parameter that was taken out of its group, and put back."""
    ddp = wrapped(stage)
    optimizer = ZeroOptimizer(ddp.parameters(), torch.optim.AdamW, overlap_with_ddp=overlap, **ADAMW)
    steps(ddp, optimizer, 1)
    taken, said = optimizer.param_groups[0]["params"].pop(3), []
    for call in (lambda: steps(ddp, optimizer, 1), optimizer.consolidate_state_dict):
        try:
            call()
        except RuntimeError as error:
            said.append(str(error))
    optimizer.param_groups[0]["params"].insert(3, taken)
    if not overlap:
        steps(ddp, optimizer, 1)
    return said


@pytest.mark.parametrize(("stage", "overlap"), [(1, False), (2, False), (2, True), (3, False)])
def test_a_parameter_that_leaves_its_group_is_named(pair, stage, overlap):
    for said in pair.run(with_fewer, stage, overlap):
        assert len(said) == 2 and all("parameter 2.bias was taken out of param group 0" in text for text in said)
