"""RINGDP_WATCH=1: every DistributedDataParallel of the process is watched from the first step of its optimizer on."""

from __future__ import annotations

import logging
import os
import weakref
from collections.abc import Callable
from typing import Any

from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from ringdp.tools.attach.patches import Patches

VARIABLE = "RINGDP_WATCH"
log = logging.getLogger("ringdp.watch")
patches = Patches()
_made: weakref.WeakSet[DistributedDataParallel] = weakref.WeakSet()


def start() -> None:
    """Once per process; torch has been imported. ValueError on a bad value."""
    value = os.environ.get(VARIABLE) or "0"
    if value not in ("0", "1"):
        raise ValueError(f"invalid value '{value}' for {VARIABLE} (expected one of: 0, 1)")
    if value == "0" or patches:
        return
    patches.around(DistributedDataParallel, "__init__", _noted_init)
    patches.on_undo(register_optimizer_step_pre_hook(_before_step).remove)


def _noted_init(original: Callable[..., Any]) -> Callable[..., Any]:
    def __init__(wrapper: Any, *args: Any, **kwargs: Any) -> None:
        original(wrapper, *args, **kwargs)
        _made.add(wrapper)

    return __init__


def _before_step(optimizer: Optimizer, *_: object) -> None:
    if not _made:
        return
    stepped = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    for wrapper in [made for made in _made if any(id(p) in stepped for p in made.parameters())]:
        _made.discard(wrapper)
        _watch(wrapper)


def _watch(wrapper: DistributedDataParallel) -> None:
    from ringdp.tools.watch import watch

    try:
        watch.begin(wrapper)
    except Exception as error:  # whatever it is, the training goes on
        log.warning("ringdp.watch does not watch a model: %s", error)
