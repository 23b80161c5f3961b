"""The Holder protocol between save/load and the owner of a state, such as a sharded optimizer.

A holder knows which pieces of which tensors this rank has. `save` collects this from all ranks and writes each element
once; pieces that several ranks hold (replicas, a step count) must have equal bits. A sharded optimizer holds the
parameters too (kind "parameter"); the holder of the module then has only the buffers. An optimizer that does not know
the parameters' names implements HasHolder instead: `holder(names)` returns its Holder.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from torch import Tensor

from ringdp.checkpoint.piece import Piece, Spec, Stretch

# settings[OPTIMIZER] = {"algorithm": class name of the torch.optim optimizer,
#                        "groups": [{"names": [parameter names], "lr": ..., every other key of the group}],
#                        "values": {parameter name: {state key: None, bool, int, float or str}}}
OPTIMIZER = "optimizer"

PARAMETER, BUFFER, MASTER = "parameter", "buffer", "master"
# Every other kind is a key of the optimizer's state.
OF_MODULES = (PARAMETER, BUFFER)


@runtime_checkable
class Holder(Protocol):
    """This rank's part of the state that a checkpoint stores."""

    def pieces(self) -> Iterable[Piece]:
        """The pieces this rank holds now. All ranks together hold every element of every tensor.

        Raises if the state cannot be saved (e.g. torn by an error in the middle of a step).
        """
        ...

    def settings(self) -> Mapping[str, Any]:
        """All state that is not a tensor, as plain Python values; the optimizer's under OPTIMIZER.

        Equal on all ranks, except "values", where a rank may have only those of its own pieces.
        """
        ...

    def wants(self, saved: Sequence[Spec], settings: Mapping[str, Any]) -> Iterable[Stretch]:
        """Which elements of a checkpoint that holds `saved` and `settings` this rank needs. Changes nothing.

        Raises CheckpointError, naming the tensor or setting, when they do not fit this holder.
        """
        ...

    def adopt(self, pieces: Sequence[Piece], settings: Mapping[str, Any]) -> None:
        """Loads the pieces, verified, one per stretch of `wants`; called when all ranks have theirs.

        The pieces are on the CPU, and the holder may keep them. Must not fail: `wants` has checked everything.
        """
        ...


@runtime_checkable
class HasHolder(Protocol):
    """A sharded optimizer that returns a Holder when it is given the parameters' names."""

    def holder(self, names: Mapping[Tensor, str]) -> Holder:
        """The holder of its parameters and state. `names`: the name of every parameter of the model."""
        ...
