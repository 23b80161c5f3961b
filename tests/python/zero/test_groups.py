"""Param groups stay the user's, and the state of pieces is read and changed through ZeroOptimizer.state."""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from ranks import HERE, error_of, on_ranks
from ringdp.testing import one_process
from ringdp.zero.groups import PieceState, check_members, copy_settings, numbered, of_pieces, settings
from ringdp.zero.optimizer import ZeroOptimizer
from small_models import loss_of
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, get_state_dict
from zero_rig import ADAMW, differences, model, steps, wrapped


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
    copy_settings(outer, inner)
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


@pytest.mark.parametrize(("stage", "overlap"), [(1, False), (2, False), (2, True), (3, False)])
@on_ranks(2)
def test_a_parameter_that_leaves_its_group_is_named(stage: int, overlap: bool) -> None:
    """What steps and state dicts say of a parameter that was taken out of its group, and put back."""
    ddp = wrapped(stage)
    optimizer = ZeroOptimizer(ddp.parameters(), torch.optim.AdamW, overlap_with_ddp=overlap, **ADAMW)
    steps(ddp, optimizer, 1)
    taken = optimizer.param_groups[0]["params"].pop(3)
    for call in (lambda: steps(ddp, optimizer, 1), optimizer.consolidate_state_dict):
        assert "parameter 2.bias was taken out of param group 0" in error_of(call)
    optimizer.param_groups[0]["params"].insert(3, taken)
    if not overlap:
        steps(ddp, optimizer, 1)


def cleared(optimizer: torch.optim.Optimizer) -> None:
    optimizer.state.clear()


def replaced(optimizer: torch.optim.Optimizer) -> None:
    optimizer.state = defaultdict(dict)


def popped(optimizer: torch.optim.Optimizer) -> None:
    for key in list(optimizer.state):
        optimizer.state.pop(key)


def edited(optimizer: torch.optim.Optimizer) -> None:
    for entry in optimizer.state.values():
        entry["exp_avg"].zero_()
        entry["exp_avg_sq"].mul_(0.5)


def exchanged(optimizer: torch.optim.Optimizer) -> None:
    for key, entry in optimizer.state.items():
        optimizer.state[key] = {**entry, "step": torch.tensor(7.0)}


CHANGES: list[Callable[[Any], None]] = [cleared, replaced, popped, edited, exchanged]


@pytest.mark.parametrize("stage", [1, 2, 3])
@on_ranks(3, [])
def test_changes_count(stage: int) -> list[str]:
    """Changes that are not as in one process."""
    wrong = []
    for change in CHANGES:
        ddp, plain = wrapped(stage), model()
        optimizer = ZeroOptimizer(ddp.parameters(), torch.optim.AdamW, **ADAMW)
        alone = torch.optim.AdamW(plain.parameters(), **ADAMW)
        steps(ddp, optimizer, 2)
        one_process(plain, alone, loss_of, ranks=HERE.size, steps=2)
        for each in (optimizer, alone):
            change(each)
        steps(ddp, optimizer, 2)
        one_process(plain, alone, loss_of, ranks=HERE.size, steps=2)
        wrong += [f"{change.__name__}: {name}" for name in differences(ddp, optimizer, plain, alone)]
    return wrong


@pytest.mark.parametrize("stage", [1, 2, 3])
@on_ranks(2)
def test_what_wants_whole_state_is_refused_and_changes_nothing(stage: int) -> None:
    """What those are told who ask for a whole parameter's state, or for any."""
    ddp, plain = wrapped(stage), model()
    optimizer = ZeroOptimizer(ddp.parameters(), torch.optim.AdamW, **ADAMW)
    alone = torch.optim.AdamW(plain.parameters(), **ADAMW)
    first = ddp.module[0].bias

    def assign() -> None:
        optimizer.state[first] = {}

    def replace() -> None:
        optimizer.state = {first: {}}

    for count in (0, 2):
        steps(ddp, optimizer, count)
        one_process(plain, alone, loss_of, ranks=HERE.size, steps=count)
        for call in (
            lambda: optimizer.state[first],
            lambda: optimizer.state.get(first),
            lambda: first in optimizer.state,
            assign,
            replace,
        ):
            assert "the state of parameter 0.bias is in shards" in error_of(call)
        for call in (
            lambda: bool(optimizer.state),
            lambda: get_state_dict(ddp, optimizer) if stage < 3 else bool(optimizer.state),
            lambda: get_optimizer_state_dict(ddp, optimizer) if stage < 3 else bool(optimizer.state),
        ):
            assert "ringdp.checkpoint" in error_of(call)
        assert "cannot be copied" in error_of(copy.deepcopy, optimizer)
    assert differences(ddp, optimizer, plain, alone) == []


def test_it_is_a_mapping_of_pieces():
    pieces = [torch.nn.Parameter(torch.ones(2)) for _ in range(2)]
    optimizer = torch.optim.SGD(pieces, lr=0.1)
    state = PieceState(optimizer)
    assert len(state) == 0 and pieces[0] not in state
    assert state[pieces[0]] == {} and list(state) == [pieces[0]]
    state["of the class"] = {"count": 1}
    state.take(state)
    assert len(state) == len(optimizer.state) == 2 and optimizer.state["of the class"] == {"count": 1}
    del state["of the class"]
    with pytest.raises(RuntimeError, match=r"a parameter of shape \[3\]"):
        state.take({torch.ones(3): {}})
    assert list(optimizer.state) == [pieces[0]]
