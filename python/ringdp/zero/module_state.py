"""What torch's state_dict() and load_state_dict() of a module do while its parameters are in shards."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from ringdp.zero.refusals import refuse_copy
from ringdp.zero.unit_storage import Bucket

Place = tuple[Bucket, int]


class StateHooks:
    """On the modules of one model.

    state_dict() is refused while parameters are freed; with keep_vars=True it has the parameters, freed as they are.
    settle: called with what is about to write parameters; raises where they must stay as they are.
    load_state_dict() of a whole dict works as ever: a parameter has memory of its own while its module loads, and every
    rank keeps its part. Not collective.
    """

    __reduce_ex__ = refuse_copy

    def __init__(
        self, module: nn.Module, buckets: Sequence[Bucket], is_whole: Callable[[], bool], settle: Callable[[str], None]
    ) -> None:
        self._is_whole, self._settle = is_whole, settle
        self._place_of: dict[int, Place] = {id(p): (b, n) for b in buckets for n, p in enumerate(b.parameters)}
        self._loans: dict[nn.Module, list[Place]] = {}
        module.register_state_dict_pre_hook(self._before_saving)
        for part in module.modules():
            if any(id(p) in self._place_of for p in part.parameters(recurse=False)):
                part.register_load_state_dict_pre_hook(self._before_loading)
                part.register_load_state_dict_post_hook(self._after_loading)

    def _before_saving(self, _: nn.Module, __: str, keep_vars: bool) -> None:
        if not (keep_vars or self._is_whole()):
            raise RuntimeError(
                "DistributedDataParallel: state_dict() at zero_stage=3, where parameters are in shards: call "
                "ddp.full_state_dict() on all ranks, or save the shards with ringdp.checkpoint"
            )

    def _before_loading(
        self, module: nn.Module, state: Mapping[str, Any], prefix: str, metadata: Mapping[str, Any], *_: object
    ) -> None:
        self._settle("load_state_dict()")
        if metadata.get("assign_to_params_buffers"):
            raise NotImplementedError(
                "DistributedDataParallel: load_state_dict(assign=True) at zero_stage=3 would replace parameters that "
                "are in shards: leave assign out, values are copied"
            )
        for key, parameter in module.named_parameters(recurse=False, remove_duplicate=False):
            value = state.get(prefix + key)
            if id(parameter) in self._place_of and torch.is_tensor(value) and _fits(value, parameter):
                bucket, position = place = self._place_of[id(parameter)]
                loans = self._loans.setdefault(module, [])
                if place not in loans:  # it may have two names here
                    bucket.lend(position)
                    loans.append(place)

    def _after_loading(self, module: nn.Module, _: object) -> None:
        for bucket, position in self._loans.pop(module, []):
            bucket.take_back(position)


def _fits(value: torch.Tensor, parameter: torch.Tensor) -> bool:
    """Whether torch will copy it; it refuses other shapes, and that parameter stays as it is."""
    return value.shape == parameter.shape or (parameter.dim() == 0 and value.dim() == 1)
