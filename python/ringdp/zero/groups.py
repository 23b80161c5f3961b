"""What users see of a ZeroOptimizer's inner optimizer: param groups of whole parameters, and the state by piece."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from typing import Any

import torch
from torch.optim import Optimizer

from ringdp.zero import registry
from ringdp.zero.flat import FlatParameters

Group = dict[str, Any]
_OWN_KEYS = ("params", "param_names")
_WAY_OUT = ", but its shards are fixed: add_param_group() adds parameters; to have fewer, make a new ZeroOptimizer"


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
    """RuntimeError names a parameter that was added to a group's list or removed from it by hand."""
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
    """The groups as in torch's state dicts: with numbers instead of parameters."""
    count = itertools.count()
    return [
        {**{k: v for k, v in group.items() if k != "params"}, "params": [next(count) for _ in group["params"]]}
        for group in groups
    ]


def settings(group: Group) -> Group:
    """A group without its parameters."""
    return {key: value for key, value in group.items() if key not in _OWN_KEYS}


def copy_settings(sources: Sequence[Group], targets: Sequence[Group]) -> None:
    """Copies the settings of each group into the corresponding one."""
    for source, target in zip(sources, targets, strict=True):
        target.update(settings(source))


def kept_settings(groups: Sequence[Group]) -> list[Group]:
    """Copies of the settings, for check_settings()."""
    return [{k: v.clone() if torch.is_tensor(v) else v for k, v in settings(group).items()} for group in groups]


def check_settings(begun: Sequence[Group], groups: Sequence[Group]) -> None:
    """RuntimeError names a setting that is another one than when the backward pass has stepped with it."""
    for number, (then, group) in enumerate(zip(begun, groups, strict=True)):
        for key, value in settings(group).items():
            if key in then and bool(then[key] != value):
                raise RuntimeError(
                    f"ZeroOptimizer: {key} of param group {number} is {value}, and was {then[key]} when the backward "
                    "pass began, which has stepped with that (overlap_with_ddp=True): change settings before "
                    "backward(), or leave overlap_with_ddp out"
                )


Entry = dict[str, Any]


class PieceState(MutableMapping[Any, Entry]):
    """The state of `optimizer`, by piece: entries can be read, changed and cleared, which affects the next step.

    why_fixed: changes are refused with this reason. RuntimeError for a parameter as the key, because its state is in
    shards, and for bool(), because ranks may differ.
    """

    def __init__(self, optimizer: Optimizer, why_fixed: str = "") -> None:
        self._optimizer, self._why_fixed = optimizer, why_fixed
        self._pieces = {id(piece) for group in optimizer.param_groups for piece in group["params"]}

    def take(self, values: Mapping[Any, Entry]) -> None:
        """Replaces the state by this mapping of pieces."""
        self._check_not_fixed()
        for key in values:
            self._check(key)
        held = dict(values)
        self._optimizer.state.clear()
        self._optimizer.state.update(held)

    def __getitem__(self, key: Any) -> Entry:
        self._check(key)
        return self._optimizer.state[key]

    def __setitem__(self, key: Any, entry: Entry) -> None:
        self._check_not_fixed()
        self._check(key)
        self._optimizer.state[key] = entry

    def __delitem__(self, key: Any) -> None:
        self._check_not_fixed()
        self._check(key)
        del self._optimizer.state[key]

    def __contains__(self, key: object) -> bool:
        self._check(key)
        return key in self._optimizer.state

    def __iter__(self) -> Iterator[Any]:
        return iter(self._optimizer.state)

    def __len__(self) -> int:
        return len(self._optimizer.state)

    def __bool__(self) -> bool:
        raise RuntimeError(
            "ZeroOptimizer.state: whether there is any may differ from rank to rank, as each has its own pieces: save "
            "with ringdp.checkpoint or consolidate_state_dict(), as torch.distributed.checkpoint.state_dict does not "
            "know of shards"
        )

    def _check_not_fixed(self) -> None:
        if self._why_fixed:
            raise RuntimeError(f"ZeroOptimizer.state: a change {self._why_fixed}")

    def _check(self, key: object) -> None:
        if torch.is_tensor(key) and id(key) not in self._pieces:
            raise RuntimeError(
                f"ZeroOptimizer.state: the state of {registry.described(key)} is in shards: go through "
                "optimizer.state.items(), whose keys are the pieces that this rank steps, or collect it with "
                "consolidate_state_dict()"
            )
