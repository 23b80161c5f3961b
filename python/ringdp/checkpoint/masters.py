"""Float32 copies of 16-bit parameters ("master"), where the run that saved has them and the one that loads has not.

An optimizer keeps its state in the dtype that it steps: the master's, or else the parameter's. With masters on one side
only, such state is converted: widened exactly; or rounded, as torch's load_state_dict does, and said so.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import torch
from torch import Tensor

from ringdp.checkpoint.holder import MASTER, PARAMETER
from ringdp.checkpoint.piece import Piece, Spec
from ringdp.zero.elements import is_per_element


class Stepped:
    """Which dtypes the optimizer of a checkpoint has stepped."""

    def __init__(self, saved: Sequence[Spec]) -> None:
        parameters = [spec for spec in saved if spec.kind == PARAMETER]
        self._shapes = {spec.name: spec.shape for spec in parameters}
        self._dtypes = {spec.name: spec.torch_dtype for spec in parameters}
        self._dtypes |= {spec.name: spec.torch_dtype for spec in saved if spec.kind == MASTER}

    def dtype_for(self, saved: Spec, stepped: torch.dtype) -> torch.dtype:
        """Of a saved tensor of the state, in a run that steps its parameter in the dtype `stepped`."""
        name = saved.name
        if name not in self._shapes or not is_per_element(saved.kind, saved.shape, self._shapes[name]):
            return saved.torch_dtype
        return stepped if saved.torch_dtype == self._dtypes[name] else saved.torch_dtype

    def fitted(self, piece: Piece, stepped: torch.dtype) -> Tensor:
        """The values of a piece of the state in that dtype."""
        return piece.tensor.to(self.dtype_for(piece.stretch.spec, stepped))


def say_left_out(names: Sequence[str]) -> None:
    """A warning that the masters of these parameters are in the checkpoint, and not in this run."""
    if names:
        warnings.warn(
            f"ringdp.checkpoint: the checkpoint has float32 masters of {len(names)} parameters ({names[0]}, ...), this "
            "optimizer none: it goes on from the parameters, and rounds its state to their dtype. To keep every bit, "
            "load it into a ringdp.ZeroOptimizer with master_dtype=torch.float32",
            stacklevel=2,
        )
