"""What `ringdp.checkpoint` saves and loads of a `ZeroOptimizer`: parameters, masters, state and groups."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from ringdp.checkpoint.combined import Combined
from ringdp.checkpoint.groups import Groups
from ringdp.checkpoint.piece import Piece
from ringdp.zero.flat import FlatParameters
from ringdp.zero.stored_parameters import StoredParameters
from ringdp.zero.stored_state import StoredState


class _Stored(Combined):
    """Both, what must hold before they are saved, and what follows when they are loaded."""

    def __init__(self, *holders: Any, check_whole: Callable[[], None], taken_over: Callable[[], None]) -> None:
        super().__init__(*holders)
        self._check_whole, self._taken_over = check_whole, taken_over

    def pieces(self) -> Iterator[Piece]:
        self._check_whole()
        return super().pieces()

    def adopt(self, pieces: Sequence[Piece], settings: Mapping[str, Any]) -> None:
        super().adopt(pieces, settings)
        self._taken_over()


def stored(
    flats: Sequence[FlatParameters],
    frozen: Sequence[FlatParameters],
    optimizer: Optimizer,
    groups: Sequence[dict[str, Any]],
    names: Mapping[Tensor, str],
    check_whole: Callable[[], None],
    taken_over: Callable[[], None],
) -> Combined:
    """optimizer: steps the pieces of `flats`; frozen: parameters in shards that nobody steps.

    groups: of whole parameters; names: of every parameter of the model.
    check_whole: raises where there is no whole state to save.
    """
    whole = Groups(type(optimizer).__name__, groups, names)
    parameters = StoredParameters([*flats, *frozen], names)
    state = StoredState(flats, optimizer, whole, names)
    return _Stored(parameters, state, check_whole=check_whole, taken_over=taken_over)
