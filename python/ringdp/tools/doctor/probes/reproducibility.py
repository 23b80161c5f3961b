"""Whether a run can be repeated: the generator's state at each dropout, and whether kernels give the same bits twice.

Record dropout, for the first steps: step, call (within the step), name, shape, state. Equal states on two ranks drop
the same units.
Record kernels: differing (names of parameters whose gradients differ), or unable (why that cannot be known). A forward
and backward pass is run twice on the same inputs; generators and buffers are put back in between.
"""

from __future__ import annotations

import hashlib
import inspect
import random
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from ringdp.tools.doctor.probes.context import ProbeContext

_FUNCTIONS = ("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout")
_STEPS, _CALLS = 4, 8


def install(context: ProbeContext) -> None:
    """Installs both probes."""
    install_dropout(context)
    install_kernels(context)


def install_dropout(context: ProbeContext) -> None:
    """For torch.nn's dropout layers, which call these functions, and for direct calls."""
    calls = _Calls(context)
    for name in _FUNCTIONS:
        context.patches.around(functional, name, lambda original, name=name: calls.watched(name, original))
    context.patches.around(functional, "scaled_dot_product_attention", calls.watched_attention)


class _Calls:
    """Counts the calls of each step."""

    def __init__(self, context: ProbeContext) -> None:
        self._context = context
        self._step = -1
        self._call = 0

    def watched(self, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        signature = inspect.signature(original)  # whether training is the default differs between them

        def call(*args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling():
                return original(*args, **kwargs)
            bound = signature.bind(*args, **kwargs)
            bound.apply_defaults()
            if bound.arguments["training"] and bound.arguments["p"] > 0:
                self._note(name, bound.arguments["input"])
            return original(*args, **kwargs)

        return call

    def watched_attention(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(query: Any, *args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling():
                return original(query, *args, **kwargs)
            if kwargs.get("dropout_p", args[3] if len(args) > 3 else 0.0) > 0:
                self._note("attention", query)
            return original(query, *args, **kwargs)

        return call

    def _note(self, name: str, tensor: torch.Tensor) -> None:
        if self._step != self._context.step:
            self._step, self._call = self._context.step, 0
        if self._step < _STEPS and self._call < _CALLS:
            row = {"kind": "dropout", "step": self._step, "call": self._call, "name": name}
            self._context.write({**row, "shape": list(tensor.shape), "state": _state(tensor.device)})
        self._call += 1


def _state(device: torch.device) -> str:
    state = torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()
    return hashlib.sha1(state.numpy().tobytes(), usedforsecurity=False).hexdigest()[:16]


_AT_STEP = 2
_MESSAGE = 200


def install_kernels(context: ProbeContext) -> None:
    """Looks before the forward pass of one early step, the same one on all ranks."""
    context.patches.around(DistributedDataParallel, "forward", lambda original: _watched_forward(context, original))


def _watched_forward(context: ProbeContext, original: Callable[..., Any]) -> Callable[..., Any]:
    looked = False

    def forward(wrapper: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal looked
        if torch.compiler.is_compiling():
            return original(wrapper, *args, **kwargs)
        if context.step == _AT_STEP and not looked and wrapper.training and getattr(wrapper, "zero_stage", 0) < 3:
            looked = True
            context.write({"kind": "kernels", **_looked_at(wrapper.module, args, kwargs)})
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
    """Whether all elements are equal, with NaN equal to itself."""
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
