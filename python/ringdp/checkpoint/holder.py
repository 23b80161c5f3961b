"""What save and load ask of the owner of a state: the protocol that sharded optimizers implement.

A holder knows which pieces of which tensors this rank has. `save` asks every rank, finds out who holds what, and
writes each element once; pieces that several ranks hold (replicas, a step count) must have the same bits there.
A sharded optimizer offers the parameters as well ("parameter"); the module's adapter then holds the buffers only. As it
may not know what they are called, it need not be a Holder itself: `holder(names)` makes one (HasHolder).
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
# Every other kind is a word of the optimizer's state.
OF_MODULES = (PARAMETER, BUFFER)


@runtime_checkable
class Holder(Protocol):
    """The state that a checkpoint is made of, as far as this rank has it."""

    def pieces(self) -> Iterable[Piece]:
        """The pieces this rank holds now. All ranks together hold every element of every tensor.

        Raises when the state is not fit to be saved (torn by a death in the middle of a step).
        """
        ...

    def settings(self) -> Mapping[str, Any]:
        """All that is no tensor, of plain Python values; the optimizer's under OPTIMIZER.

        Equal on all ranks, but for "values", of which a rank may have those of its own pieces only.
        """
        ...

    def wants(self, saved: Sequence[Spec], settings: Mapping[str, Any]) -> Iterable[Stretch]:
        """Which elements of a checkpoint that holds `saved` and `settings` this rank needs. Changes nothing.

        Raises CheckpointError, naming the tensor or setting, when they do not fit this holder.
        """
        ...

    def adopt(self, pieces: Sequence[Piece], settings: Mapping[str, Any]) -> None:
        """Takes over what `wants` asked for, one verified piece per stretch; called when all ranks have theirs.

        The pieces are on the CPU and the holder's to keep. Must not fail: what can be wrong, `wants` has refused.
        """
        ...


@runtime_checkable
class HasHolder(Protocol):
    """An optimizer whose state is sharded, and which can say so when it is told the parameters' names."""

    def holder(self, names: Mapping[Tensor, str]) -> Holder:
        """The holder of its parameters and state; `names` is by identity, and has every parameter of the model."""
        ...
