"""Whether the model's kernels give the same bits twice: one forward and backward pass is run twice on the same inputs.

Record kernels: differing (names of parameters whose gradients differ), or unable (why that cannot be known).
Generators and buffers are put back in between.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from ringdp.doctor.probes.rig import Rig

_AT_STEP = 2
_MESSAGE = 200


def install(rig: Rig) -> None:
    """Before the forward pass of one early step, on all ranks alike."""
    rig.patches.around(DistributedDataParallel, "forward", lambda original: _watched_forward(rig, original))


def _watched_forward(rig: Rig, original: Callable[..., Any]) -> Callable[..., Any]:
    looked = False

    def forward(wrapper: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal looked
        if torch.compiler.is_compiling():
            return original(wrapper, *args, **kwargs)
        if rig.step == _AT_STEP and not looked and wrapper.training and getattr(wrapper, "zero_stage", 0) < 3:
            looked = True
            rig.write({"kind": "kernels", **_looked_at(wrapper.module, args, kwargs)})
        return original(wrapper, *args, **kwargs)

    return forward


def _looked_at(module: torch.nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    try:
        return {"differing": differing(module, args, kwargs)}
    except Exception as error:  # reentrant checkpoints refuse torch.autograd.grad; looking must not end the job
        return {"unable": f"{type(error).__name__}: {error}"[:_MESSAGE]}


def differing(module: torch.nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[str]:
    """Names of the parameters whose gradients differ by a bit between two passes over the same inputs."""
    named = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
    with _put_back(module):
        first = _gradients(module, [p for _, p in named], args, kwargs)
    with _put_back(module):
        second = _gradients(module, [p for _, p in named], args, kwargs)
    pairs = zip(named, first, second, strict=True)
    return [name for (name, _), one, two in pairs if one is not None and not _equal(one, two)]


def _equal(one: torch.Tensor, two: torch.Tensor) -> bool:
    """With NaN equal to itself."""
    return torch.equal(one.nan_to_num(), two.nan_to_num()) and torch.equal(one.isnan(), two.isnan())


def _gradients(module: torch.nn.Module, parameters: list[Any], args: Any, kwargs: Any) -> tuple[Any, ...]:
    outputs = [t for t in _tensors(module(*args, **kwargs)) if t.requires_grad and t.is_floating_point()]
    if not outputs:
        return (None,) * len(parameters)
    return torch.autograd.grad(sum(t.float().square().sum() for t in outputs), parameters, allow_unused=True)


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _tensors(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _tensors(item)


@contextmanager
def _put_back(module: torch.nn.Module) -> Iterator[None]:
    buffers = [(buffer, buffer.clone()) for buffer in module.buffers()]
    numpy = sys.modules.get("numpy")
    state = numpy.random.get_state() if numpy else None
    python = random.getstate()
    devices = {p.device for p in module.parameters() if p.device.type == "cuda"}
    try:
        with torch.random.fork_rng([device.index for device in devices]), torch.enable_grad():
            yield
    finally:
        random.setstate(python)
        if numpy:
            numpy.random.set_state(state)
        with torch.no_grad():
            for buffer, kept in buffers:
                buffer.copy_(kept)
