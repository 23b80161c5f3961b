"""Refuses by name what cannot be sharded: shared memory at any stage, the rest at stage 3. Nothing is changed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter
from torch.nn.utils import parametrize

from ringdp.zero.units import is_sharded

Init = Callable[[nn.Module], object]


def check_module(module: nn.Module, init: Init | None, ignored: frozenset[str]) -> None:
    """ValueError or NotImplementedError names the first module or parameter that stage 3 does not support."""
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
    moving = [p for p in named.values() if is_sharded(p)]
    check_no_aliases(
        moving, (*module.named_parameters(), *module.named_buffers()), "DistributedDataParallel: zero_stage=3"
    )
    devices = {p.device for p in moving if not p.is_meta}
    if len(devices) > 1:
        _refuse(f"parameters are on {len(devices)} devices ({', '.join(sorted(map(str, devices)))}): use one")
    for name, part in module.named_modules():
        if has_meta(part) and init is None and not callable(getattr(part, "reset_parameters", None)):
            kind = type(part).__name__
            raise ValueError(
                f"DistributedDataParallel: {name or 'the model'} ({kind}) is on the meta device and has no "
                "reset_parameters(), so its parameters or buffers cannot be initialized: give it one, or pass "
                "init=function, which is called with each such module"
            )


def check_no_aliases(moving: Iterable[torch.Tensor], named: Iterable[tuple[str, torch.Tensor]], who: str) -> None:
    """NotImplementedError names two tensors that share memory, if sharding would move only one of them.

    moving: the tensors that get memory of their own. who: begins the message.
    """
    movers = {id(tensor) for tensor in moving}
    known = {id(tensor): (name, tensor) for name, tensor in named if tensor.layout == torch.strided and tensor.numel()}
    spans = sorted((_span(name, tensor) for name, tensor in known.values()), key=lambda span: (span.where, span.begin))
    before: list[_Span] = []
    for span in spans:
        before = [other for other in before if other.where == span.where and other.end > span.begin]
        for other in before:
            if not movers.isdisjoint((id(span.tensor), id(other.tensor))) and _share_elements(span, other):
                raise NotImplementedError(
                    f"{who}: {other.name} and {span.name} share memory, and parameters that are sharded get memory of "
                    "their own: tie them by assigning the same Parameter to both modules, or use zero_stage=0"
                )
        before.append(span)


def has_meta(module: nn.Module) -> bool:
    """Whether the module itself, without its children, has parameters or buffers on the meta device."""
    return any(t.is_meta for t in (*module.parameters(recurse=False), *module.buffers(recurse=False)))


def why_opaque(part: nn.Module) -> str:
    """Why hooks of the modules inside do not run; "" if they do."""
    if isinstance(part, torch._dynamo.OptimizedModule) or part._compiled_call_impl is not None:
        return "is compiled, and its graph knows nothing of gathers: wrap the model uncompiled"
    if isinstance(part, torch.jit.ScriptModule):
        return "is a ScriptModule, which calls no hooks of its parts: wrap the Python module"
    return ""


def refuse_copy(self: object, protocol: object) -> None:
    """The __reduce_ex__ of hooks: copies and pickles of their modules would have no parameters."""
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


@dataclass(frozen=True)
class _Span:
    """The bytes from the first to the last of a tensor: addresses of a device, or offsets in a meta storage."""

    name: str
    tensor: torch.Tensor
    where: tuple[str, int]
    begin: int
    end: int


def _span(name: str, tensor: torch.Tensor) -> _Span:
    where = (str(tensor.device), tensor.untyped_storage()._cdata if tensor.is_meta else 0)
    begin = tensor.storage_offset() * tensor.itemsize if tensor.is_meta else tensor.data_ptr()
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return _Span(name, tensor, where, begin, begin + (last + 1) * tensor.itemsize)


def _share_elements(a: _Span, b: _Span) -> bool:
    """Whether spans that overlap have an element in common: columns of one matrix need not."""
    begin = min(a.begin, b.begin)
    taken = torch.zeros(max(a.end, b.end) - begin, dtype=torch.bool)
    _bytes_in(taken, a, begin).fill_(True)
    return bool(_bytes_in(taken, b, begin).any())


def _bytes_in(memory: torch.Tensor, span: _Span, begin: int) -> torch.Tensor:
    size = span.tensor.itemsize
    strides = [stride * size for stride in span.tensor.stride()]
    return memory.as_strided((*span.tensor.shape, size), (*strides, 1), span.begin - begin)


def _check_ignored(module: nn.Module, ignored: frozenset[str]) -> None:
    names: dict[int, list[str]] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    for of_one in names.values():
        if 0 < len(ignored.intersection(of_one)) < len(of_one):
            _refuse(f"parameter {of_one[0]} is also {', '.join(of_one[1:])}, and only some of these names are ignored")
