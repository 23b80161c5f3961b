"""What stage 3 cannot shard, by name, before anything moves."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter
from torch.nn.utils import parametrize

from ringdp.zero.units import is_sharded

Init = Callable[[nn.Module], object]


def check_module(module: nn.Module, init: Init | None, ignored: frozenset[str]) -> None:
    """ValueError or NotImplementedError names the first module or parameter that does not fit."""
    for name, part in module.named_modules():
        _check_part(f"module {name}" if name else "the model", part)
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        if isinstance(tensor, (UninitializedParameter, UninitializedBuffer)):
            _refuse(f"{name} of a lazy module has no shape yet: run a forward pass before it is wrapped")
    _check_ignored(module, ignored)
    named = {n: p for n, p in module.named_parameters() if n not in ignored}
    for name, parameter in named.items():
        if type(parameter.data) is not torch.Tensor or parameter.layout != torch.strided:
            _refuse(
                f"parameter {name} is a {type(parameter.data).__name__} of layout {parameter.layout}: use strided ones"
            )
    if not any(p.requires_grad for p in named.values()):
        _refuse("no parameter requires a gradient: there is nothing to average; use zero_stage=0 without a wrapper")
    devices = {p.device for p in named.values() if is_sharded(p) and not p.is_meta}
    if len(devices) > 1:
        _refuse(f"parameters are on {len(devices)} devices ({', '.join(sorted(map(str, devices)))}): use one")
    for name, part in module.named_modules():
        if has_meta(part) and init is None and not callable(getattr(part, "reset_parameters", None)):
            kind = type(part).__name__
            raise ValueError(
                f"DistributedDataParallel: {name or 'the model'} ({kind}) is on the meta device and has no "
                "reset_parameters(), so nothing says what its parameters or buffers begin with: give it one, or pass "
                "init=function, which is called with each such module"
            )


def has_meta(module: nn.Module) -> bool:
    """Whether parameters or buffers of its own are on the meta device."""
    return any(t.is_meta for t in (*module.parameters(recurse=False), *module.buffers(recurse=False)))


def why_opaque(part: nn.Module) -> str:
    """Why hooks of what is inside do not run when they must; "" where they do."""
    if isinstance(part, torch._dynamo.OptimizedModule) or part._compiled_call_impl is not None:
        return "is compiled, and its graph knows nothing of gathers: wrap the model uncompiled"
    if isinstance(part, torch.jit.ScriptModule):
        return "is a ScriptModule, which calls no hooks of its parts: wrap the Python module"
    return ""


def refuse_copy(self: object, protocol: object) -> None:
    """As the __reduce_ex__ of hooks: copies and pickles of their modules would have no parameters."""
    raise NotImplementedError(
        "DistributedDataParallel: a model with zero_stage=3, whose parameters are in shards, cannot be copied or "
        "pickled: take ddp.full_state_dict(), or save with ringdp.checkpoint"
    )


def _check_part(which: str, part: nn.Module) -> None:
    reason = why_opaque(part)
    if reason:
        _refuse(f"{which} {reason}")
    if parametrize.is_parametrized(part):
        _refuse(f"{which} has parametrizations, whose results outlive a gather: remove them before it is wrapped")
    if isinstance(part, (nn.Embedding, nn.EmbeddingBag)) and part.sparse:
        _refuse(f"{which} has sparse gradients, which have no shards: make it with sparse=False")


def _refuse(what: str) -> None:
    raise NotImplementedError(f"DistributedDataParallel with zero_stage=3: {what}. Or use zero_stage=2")


def _check_ignored(module: nn.Module, ignored: frozenset[str]) -> None:
    names: dict[int, list[str]] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    for of_one in names.values():
        if 0 < len(ignored.intersection(of_one)) < len(of_one):
            _refuse(f"parameter {of_one[0]} is also {', '.join(of_one[1:])}, and only some of these names are ignored")
