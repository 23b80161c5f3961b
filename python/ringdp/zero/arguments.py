"""The arguments of a `ZeroOptimizer`, and what is refused by name, before anything is changed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.optim import Optimizer

from ringdp.text.units import agreeing, counted
from ringdp.zero import registry
from ringdp.zero.element_wise import check_class
from ringdp.zero.refusals import check_no_aliases, why_opaque


def check_choices(optimizer_class: type[Optimizer], master_dtype: torch.dtype | None) -> None:
    """ValueError names a class that cannot run on shards, or a master_dtype other than float32."""
    check_class(optimizer_class)
    if master_dtype not in (None, torch.float32):
        raise ValueError(f"ZeroOptimizer: master_dtype={master_dtype}, must be torch.float32 or None")


def check_overlap(overlap_with_ddp: bool, wrapper: Any | None) -> None:
    """ValueError if overlap_with_ddp is set and this wrapper (None: none) cannot step inside the backward pass.

    NotImplementedError with compress.
    """
    if not overlap_with_ddp:
        return
    stage = wrapper.zero_stage if wrapper is not None else 1
    if stage < 2:
        raise ValueError(
            f"ZeroOptimizer: overlap_with_ddp=True at stage {stage}: gradients are whole there until step(). Wrap the "
            "model in ringdp.DistributedDataParallel with zero_stage=2, or leave it out"
        )
    if wrapper.find_unused_parameters or wrapper.static_graph:
        raise ValueError(
            "ZeroOptimizer: overlap_with_ddp=True with find_unused_parameters or static_graph: which parameters are "
            "unused is known at the end of the backward pass, and they must not be stepped. Leave one of the two out"
        )
    if wrapper.compresses:
        raise NotImplementedError(
            "ZeroOptimizer: overlap_with_ddp=True over a wrapper with compress=..., whose means arrive bucket by "
            "bucket: leave it out"
        )


def check_gather(gather: str, wrapper: Any | None) -> None:
    """ValueError or NotImplementedError if gather="forward" and this wrapper's forward pass cannot wait for gathers."""
    if gather not in ("step", "forward"):
        raise ValueError(f'ZeroOptimizer: gather={gather!r}, must be "step" or "forward"')
    if gather == "step":
        return
    if wrapper is None:
        raise ValueError(
            'ZeroOptimizer: gather="forward" without a ringdp.DistributedDataParallel of zero_stage=1 or 2: the '
            "modules of its model wait for their parameters. Wrap the model, or leave gather out"
        )
    if wrapper.zero_stage > 2:
        raise ValueError(
            f'ZeroOptimizer: gather="forward" at stage {wrapper.zero_stage}, which gathers every unit for its forward '
            "pass anyway: leave it out"
        )
    for name, part in wrapper.module.named_modules():
        reason = why_opaque(part)
        if reason:
            where = f"module {name}" if name else "the model"
            raise NotImplementedError(f'ZeroOptimizer: gather="forward": {where} {reason}. Or leave it out')


def check_leaves(overlap_with_ddp: bool, gather: str, wrapper: Any | None) -> None:
    """NotImplementedError if a wrapper with micro_batches is to step or gather inside passes."""
    leaf_steps = wrapper.reducer.leaf_steps if wrapper is not None else None
    for what, asked in (("overlap_with_ddp=True", overlap_with_ddp), ('gather="forward"', gather == "forward")):
        if asked and leaf_steps is not None:
            raise NotImplementedError(
                f"ZeroOptimizer: {what} over a wrapper with micro_batches={leaf_steps.micro_batches}: it is for passes "
                "that all ranks run: leave it out"
            )


def check_group(param_group: dict[str, Any], wrapper: Any | None) -> dict[str, Any]:
    """The group with its parameters in a list. ValueError if they do not belong to this wrapper."""
    given = param_group["params"]
    listed = [given] if torch.is_tensor(given) else list(given)
    parameters = [p[1] if isinstance(p, tuple) else p for p in listed]
    if parameters and registry.one_wrapper_of(parameters) is not wrapper:
        raise ValueError(
            f"ZeroOptimizer.add_param_group: {counted(len(parameters), 'parameter')} "
            f"{agreeing(parameters, 'does', 'do')} not belong to the wrapper of the others: "
            "give them an optimizer of their own"
        )
    check_parameters(parameters, wrapper)
    return {**param_group, "params": listed}


def check_parameters(parameters: Sequence[torch.Tensor], wrapper: Any | None) -> None:
    """ValueError names a parameter that has no sharded gradient, or that is given twice.

    NotImplementedError names one that shares memory with another one of the wrapper's module, or of `parameters`.
    """
    sparse = next((p for p in parameters if p.layout != torch.strided), None)
    if sparse is not None:
        raise ValueError(
            f"ZeroOptimizer: a parameter of shape {list(sparse.shape)} has layout {sparse.layout}, which has no "
            "shards: step it with an optimizer of its own"
        )
    twice = next((p for p, times in Counter(parameters).items() if times > 1), None)
    if twice is not None:
        raise ValueError(
            f"ZeroOptimizer: {registry.described(twice)} is given twice, and its shard would be stepped once: give "
            "every parameter once"
        )
    foreign = [p for p in _foreign(parameters, wrapper) if p.requires_grad]
    if foreign:
        raise ValueError(f"ZeroOptimizer: {_not_averaged(foreign[0])}")
    _check_memory(parameters, wrapper)


def _check_memory(parameters: Sequence[torch.Tensor], wrapper: Any | None) -> None:
    """Before parameters are moved into buckets; at stage 3 that has happened already."""
    if wrapper is None:
        named = [(f"parameter {number} of shape {list(p.shape)}", p) for number, p in enumerate(parameters)]
        check_no_aliases(parameters, named, "ZeroOptimizer")
    elif wrapper.sharded_model is None:
        moving = wrapper.reducer.parameters if wrapper.zero_stage == 2 else parameters
        named = [*wrapper.module.named_parameters(), *wrapper.module.named_buffers()]
        check_no_aliases(moving, named, "ZeroOptimizer")


def check_averaged(parameters: Sequence[torch.Tensor], wrapper: Any | None) -> None:
    """RuntimeError names a parameter that has a gradient, but was frozen when the model was wrapped."""
    for parameter in _foreign(parameters, wrapper):
        if parameter.grad is not None:
            raise RuntimeError(f"ZeroOptimizer: {_not_averaged(parameter)}")


def _not_averaged(parameter: torch.Tensor) -> str:
    return (
        f"{registry.described(parameter)} was frozen when the model was wrapped, so its gradient is not averaged: wrap "
        "the model again after requires_grad has changed"
    )


def _foreign(parameters: Sequence[torch.Tensor], wrapper: Any | None) -> list[torch.Tensor]:
    if wrapper is None:
        return []
    known = {id(p) for p in wrapper.averaged_parameters()}
    return [p for p in parameters if id(p) not in known]


def group_for(process_group: dist.ProcessGroup | None, wrapper: Any | None) -> dist.ProcessGroup:
    """The group over which state is sharded. ValueError if `process_group` is not the wrapper's."""
    if wrapper is None:
        return process_group if process_group is not None else dist.group.WORLD
    if process_group not in (None, wrapper.process_group):
        raise ValueError("ZeroOptimizer: process_group is not the one of the parameters' wrapper: leave it out")
    return wrapper.process_group
