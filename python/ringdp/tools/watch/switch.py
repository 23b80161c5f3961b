"""RINGDP_WATCH=1: every DistributedDataParallel of the process is watched from the first step of its optimizer on."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from torch.nn.parallel import DistributedDataParallel

from ringdp.tools.attach.patches import Patches

VARIABLE = "RINGDP_WATCH"
patches = Patches()


def start() -> None:
    """Once per process; torch has been imported. ValueError on a bad value."""
    value = os.environ.get(VARIABLE) or "0"
    if value not in ("0", "1"):
        raise ValueError(f"invalid value '{value}' for {VARIABLE} (expected one of: 0, 1)")
    if value == "1" and not patches:
        patches.around(DistributedDataParallel, "__init__", _noted_init)


def _noted_init(original: Callable[..., Any]) -> Callable[..., Any]:
    def __init__(wrapper: Any, *args: Any, **kwargs: Any) -> None:
        original(wrapper, *args, **kwargs)
        from ringdp.tools.watch import watch

        watch.expect(wrapper)  # ringdp's wrapper is not complete yet

    return __init__
