"""`ZeroOptimizer.state`: that of the pieces which this rank steps; who asks for a whole parameter's is refused."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any

import torch
from torch.optim import Optimizer

from ringdp.zero import registry

Entry = dict[str, Any]


class PieceState(MutableMapping[Any, Entry]):
    """The state of `optimizer`, by piece: entries can be read, changed and cleared, and steps go by them.

    RuntimeError for a parameter as the key, whose state is in shards, and for the question whether there is any, which
    ranks may answer differently.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        self._optimizer = optimizer
        self._pieces = {id(piece) for group in optimizer.param_groups for piece in group["params"]}

    def take(self, values: Mapping[Any, Entry]) -> None:
        """Becomes a mapping of pieces."""
        for key in values:
            self._check(key)
        held = dict(values)
        self._optimizer.state.clear()
        self._optimizer.state.update(held)

    def __getitem__(self, key: Any) -> Entry:
        self._check(key)
        return self._optimizer.state[key]

    def __setitem__(self, key: Any, entry: Entry) -> None:
        self._check(key)
        self._optimizer.state[key] = entry

    def __delitem__(self, key: Any) -> None:
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

    def _check(self, key: object) -> None:
        if torch.is_tensor(key) and id(key) not in self._pieces:
            raise RuntimeError(
                f"ZeroOptimizer.state: the state of {registry.described(key)} is in shards: go through "
                "optimizer.state.items(), whose keys are the pieces that this rank steps, or collect it with "
                "consolidate_state_dict()"
            )
