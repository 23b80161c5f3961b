"""Parameters that a model gets after it was wrapped: nobody averages their gradients, so no optimizer may step them.

They come by assignment, in a module that is added, or by load_state_dict(assign=True). Those that get no gradient (a
teacher, an average, a metric's network) do no harm.
"""

from __future__ import annotations

import functools
import weakref
from typing import Any

import torch
from torch.nn.modules.module import register_module_parameter_registration_hook
from torch.optim import Optimizer

_count = 0  # of parameters that modules of this process have got
_watched: weakref.WeakSet[_Model] = weakref.WeakSet()


class _Model:
    """What one wrapper has wrapped, and what its modules have got since."""

    def __init__(self, ddp: Any) -> None:
        self._ddp = weakref.ref(ddp)
        self._known = {id(parameter) for parameter in ddp.module.parameters()}
        self._seen = _count
        self._new: dict[int, str] = {}  # names by id

    def check(self, optimizer: Optimizer) -> None:
        """RuntimeError names a new parameter that has a gradient and is to be stepped."""
        ddp = self._ddp()
        if ddp is None:
            return
        if self._seen != _count:
            self._seen = _count
            ignored = ddp.parameters_to_ignore
            named = ((name, parameter) for name, parameter in ddp.module.named_parameters() if name not in ignored)
            self._new = {id(parameter): name for name, parameter in named if id(parameter) not in self._known}
        for group in optimizer.param_groups if self._new else ():
            for parameter in group["params"]:
                if parameter.grad is not None and id(parameter) in self._new:
                    raise RuntimeError(
                        f"DistributedDataParallel: parameter {self._new[id(parameter)]} came after the model was "
                        "wrapped (a layer that was added, an assignment, load_state_dict(assign=True)), so its "
                        "gradient is that of this rank alone: wrap the model again, and make the optimizer from that"
                    )


def watch(ddp: Any) -> None:
    """From now on new parameters of its module may not be stepped. As long as the wrapper lives."""
    _install()
    ddp.new_parameters = _Model(ddp)
    _watched.add(ddp.new_parameters)


def check(optimizer: Optimizer) -> None:
    """Before a step, when gradients are there."""
    for model in list(_watched):
        model.check(optimizer)


@functools.cache
def _install() -> None:
    register_module_parameter_registration_hook(_registered)


def _registered(module: torch.nn.Module, name: str, parameter: torch.nn.Parameter | None) -> None:
    del module, name, parameter
    global _count
    _count += 1
