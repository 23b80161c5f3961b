"""What is trained when this machine is measured: a model, its batches, its loss and its optimizer."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ringdp.tools.planner.fake_memory import Maker
from ringdp.tools.planner.question import InputError


@dataclass(frozen=True)
class Workload:
    """model: made anew at each call, equal on all ranks. batch(samples): of one rank. loss(model, batch): a scalar."""

    model: Callable[[], nn.Module]
    batch: Callable[[int], Any]
    loss: Callable[[Callable[..., Any], Any], Tensor]
    optimizer: Maker = torch.optim.AdamW


def gpt() -> Workload:
    """A small GPT on windows of 128 bytes: 3.3 M parameters in four blocks."""
    from ringdp.examples.gpt import GPT, Shape, next_token_loss

    shape = Shape()

    def model() -> nn.Module:
        torch.manual_seed(0)
        return GPT(shape)

    return Workload(model, lambda samples: torch.randint(256, (samples, shape.context + 1)), next_token_loss)


def mlp(layers: int = 8, width: int = 512) -> Workload:
    """Square linear layers and ReLU: 2.1 M parameters."""

    def model() -> nn.Module:
        torch.manual_seed(0)
        parts = [part for _ in range(layers) for part in (nn.Linear(width, width), nn.ReLU())]
        return nn.Sequential(*parts)

    def loss(model: Callable[..., Any], x: Tensor) -> Tensor:
        return nn.functional.mse_loss(model(x), x.flip(1))

    return Workload(model, lambda samples: torch.randn(samples, width), loss)


BUILT_IN: dict[str, Callable[[], Workload]] = {"gpt": gpt, "mlp": mlp}


def load(name: str) -> Workload:
    """`gpt`, `mlp`, or `module:function`, where the function returns a Workload. InputError says what is wrong."""
    if name in BUILT_IN:
        return BUILT_IN[name]()
    module, colon, function = name.partition(":")
    if not (module and colon and function):
        raise InputError(f"--model '{name}': type {', '.join(BUILT_IN)} or module:function")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())  # as `python -m` does, so that one's own file is found
    try:
        made = getattr(importlib.import_module(module), function)()
    except Exception as error:
        raise InputError(f"--model '{name}': {type(error).__name__}: {str(error).splitlines()[0]}") from error
    if not isinstance(made, Workload):
        raise InputError(f"--model '{name}' returned {type(made).__name__}, must be ringdp.Workload")
    return made
