"""Param groups: of whole parameters, as users and schedulers see them, and of the pieces that are stepped."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import torch

from ringdp.zero import registry
from ringdp.zero.flat import FlatParameters

Group = dict[str, Any]
_OWN_KEYS = ("params", "param_names")
_WAY_OUT = ", where shards do not follow: add_param_group() adds parameters; for fewer make a new ZeroOptimizer"


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


def check_members(groups: Sequence[Group], members: Sequence[Sequence[torch.Tensor]]) -> None:
    """RuntimeError names what was put into groups, or taken out of them, since their pieces were made."""
    if len(groups) != len(members):
        counts = f"it has {len(groups)} param groups, and was made with {len(members)}"
        raise RuntimeError(f"ZeroOptimizer: {counts}{_WAY_OUT}")
    for number, (group, known) in enumerate(zip(groups, members, strict=True)):
        now, then = ({id(p): p for p in parameters} for parameters in (group["params"], known))
        for one, other, what in ((then, now, "taken out of"), (now, then, "put into")):
            for parameter in (p for key, p in one.items() if key not in other):
                raise RuntimeError(
                    f"ZeroOptimizer: {registry.described(parameter)} was {what} param group {number}{_WAY_OUT}"
                )


def numbered(groups: Sequence[Group]) -> list[Group]:
    """As torch's state dicts have them: numbers for parameters."""
    count = itertools.count()
    return [
        {**{k: v for k, v in group.items() if k != "params"}, "params": [next(count) for _ in group["params"]]}
        for group in groups
    ]


def settings(group: Group) -> Group:
    """All but its parameters."""
    return {key: value for key, value in group.items() if key not in _OWN_KEYS}


def hand_on(givers: Sequence[Group], takers: Sequence[Group]) -> None:
    """Group by group, the settings."""
    for giver, taker in zip(givers, takers, strict=True):
        taker.update(settings(giver))
