"""Param groups of pieces: the settings of those of whole parameters, in both directions."""

from __future__ import annotations

from types import SimpleNamespace

import torch
from ringdp.zero.groups import hand_on, of_pieces, settings


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
