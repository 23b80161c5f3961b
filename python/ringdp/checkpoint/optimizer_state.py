"""What the holders of plain and sharded optimizers share: groups as settings, and the dtype of the state.

Groups are stored by parameter names, so that any layout of the same optimizer can load them. How a step is computed
(foreach, fused, capturable, differentiable) and what a wrapper calls parameters (param_names) belongs to the running
optimizer and is not stored.

The state has the dtype that is stepped: that of the parameter, or of its fp32 copy ("master"). If only one of the runs
that save and load has fp32 copies, the state is converted: widened exactly, or rounded with a warning, as torch's
load_state_dict does.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ringdp.checkpoint.holder import MASTER, OPTIMIZER, PARAMETER
from ringdp.checkpoint.piece import CheckpointError, Piece, Spec
from ringdp.text.units import counted
from ringdp.zero.element_wise import is_per_element

_OF_THE_RUN = ("params", "param_names", "foreach", "fused", "capturable", "differentiable")
_PLAIN = (type(None), bool, int, float, str)
Group = dict[str, Any]


class Groups:
    """The groups of an optimizer of the class `algorithm`. `names`: of every parameter of the model."""

    def __init__(self, algorithm: str, groups: Sequence[Group], names: Mapping[Tensor, str]) -> None:
        """Raises CheckpointError for a parameter that is not the model's."""
        self._algorithm, self._groups, self._names = algorithm, groups, names
        for number, group in enumerate(groups):
            for index, parameter in enumerate(group["params"]):
                if parameter not in names:
                    raise CheckpointError(f"parameter {index} of the optimizer's group {number} is not in the model")

    @property
    def names(self) -> set[str]:
        """The names of all parameters in the groups."""
        return {name for group in self._groups for name in self._names_in(group)}

    def settings(self, state: Iterable[tuple[str, str, Any]]) -> dict[str, Any]:
        """The settings described in holder.py. state: (parameter name, key, value); tensors are skipped.

        Raises CheckpointError for a value that is neither a tensor nor plain.
        """
        values: dict[str, dict[str, Any]] = {}
        for name, key, value in state:
            if isinstance(value, Tensor):
                continue
            if not isinstance(value, _PLAIN):
                raise CheckpointError(
                    f"the state {key} of {name} is a {type(value).__name__}, neither a tensor nor a plain value: "
                    f"{self._algorithm} cannot be saved"
                )
            values.setdefault(name, {})[key] = value
        groups = [
            {"names": self._names_in(group), **{k: v for k, v in group.items() if k not in _OF_THE_RUN}}
            for group in self._groups
        ]
        return {OPTIMIZER: {"algorithm": self._algorithm, "groups": groups, "values": values}}

    def check(self, settings: Mapping[str, Any]) -> None:
        """Raises CheckpointError if they were saved from a different optimizer or different groups."""
        saved = settings.get(OPTIMIZER)
        if saved is None:
            raise CheckpointError("the checkpoint has no optimizer's state: load it without an optimizer")
        if saved["algorithm"] != self._algorithm:
            raise CheckpointError(f"the checkpoint is of {saved['algorithm']}, this optimizer is {self._algorithm}")
        here, there = self._groups, saved["groups"]
        if len(here) != len(there):
            raise CheckpointError(f"the checkpoint has {len(there)} parameter groups, this optimizer {len(here)}")
        for number, (own, group) in enumerate(zip(here, there, strict=True)):
            names = {*self._names_in(own)}
            if (odd := sorted(names ^ {*group["names"]})) != []:
                where = "this optimizer" if odd[0] in names else "the checkpoint"
                raise CheckpointError(f"parameter group {number} has {odd[0]} only in {where}")

    def adopt(self, settings: Mapping[str, Any]) -> None:
        """Loads settings that `check` has accepted."""
        for group, theirs in zip(self._groups, settings[OPTIMIZER]["groups"], strict=True):
            for key, value in theirs.items():
                if key != "names":
                    group[key] = _like(group.get(key), value)

    def _names_in(self, group: Group) -> list[str]:
        return [self._names[parameter] for parameter in group["params"]]


def merged(of_ranks: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Every rank's settings with the values of all ranks: a rank with shards has only the values of its own pieces.

    Raises CheckpointError when ranks differ in a value.
    """
    values: dict[str, dict[str, Any]] = {}
    for settings in of_ranks:
        for name, own in settings.get(OPTIMIZER, {}).get("values", {}).items():
            # As text: NaN equals NaN here.
            if str(values.setdefault(name, own)) != str(own):
                raise CheckpointError(f"the ranks differ in the state of {name}: one has {values[name]}, another {own}")
    return [
        {**settings, OPTIMIZER: {**settings[OPTIMIZER], "values": dict(sorted(values.items()))}}
        if OPTIMIZER in settings
        else dict(settings)
        for settings in of_ranks
    ]


def _like(present: Any, saved: Any) -> Any:
    """The saved value in the form of the group's present one: a learning rate may be a tensor on a device."""
    if isinstance(present, Tensor):
        return present.fill_(saved)
    return saved.item() if isinstance(saved, Tensor) else saved


class Stepped:
    """Which dtypes the optimizer of a checkpoint has stepped."""

    def __init__(self, saved: Sequence[Spec]) -> None:
        parameters = [spec for spec in saved if spec.kind == PARAMETER]
        self._shapes = {spec.name: spec.shape for spec in parameters}
        self._dtypes = {spec.name: spec.torch_dtype for spec in parameters}
        self._dtypes |= {spec.name: spec.torch_dtype for spec in saved if spec.kind == MASTER}

    def dtype_for(self, saved: Spec, stepped: torch.dtype) -> torch.dtype:
        """The dtype that a saved state tensor gets in a run that steps its parameter in dtype `stepped`."""
        name = saved.name
        if name not in self._shapes or not is_per_element(saved.kind, saved.shape, self._shapes[name]):
            return saved.torch_dtype
        return stepped if saved.torch_dtype == self._dtypes[name] else saved.torch_dtype

    def fitted(self, piece: Piece, stepped: torch.dtype) -> Tensor:
        """The values of a piece of state in that dtype."""
        return piece.tensor.to(self.dtype_for(piece.stretch.spec, stepped))


def say_left_out(names: Sequence[str]) -> None:
    """Warns that the checkpoint has fp32 copies of these parameters, which this run does not use."""
    if names:
        warnings.warn(
            f"ringdp.checkpoint: the checkpoint has float32 masters of {counted(len(names), 'parameter')} "
            f"({names[0]}, ...), this optimizer none: it continues from the parameters and rounds its state to their "
            "dtype. To keep every bit, load it into a ringdp.ZeroOptimizer with master_dtype=torch.float32",
            stacklevel=2,
        )
