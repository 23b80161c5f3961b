"""Param groups: of whole parameters, as users and schedulers see them, and of the pieces that are stepped."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ringdp.zero.flat import FlatParameters

Group = dict[str, Any]
_OWN_KEYS = ("params", "param_names")


def of_pieces(group: Group, flats: Sequence[FlatParameters]) -> Group:
    """The settings of a group, with this rank's pieces of its parameters."""
    mine = {id(parameter) for parameter in group["params"]}
    pieces: list[torch.Tensor] = [
        tensor
        for flat in flats
        for piece, tensor in zip(flat.pieces, flat.tensors, strict=True)
        if id(flat.parameters[piece.parameter]) in mine
    ]
    return {**settings(group), "params": pieces}


def settings(group: Group) -> Group:
    """All but its parameters."""
    return {key: value for key, value in group.items() if key not in _OWN_KEYS}


def hand_on(givers: Sequence[Group], takers: Sequence[Group]) -> None:
    """Group by group, the settings."""
    for giver, taker in zip(givers, takers, strict=True):
        taker.update(settings(giver))
