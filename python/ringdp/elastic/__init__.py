"""Training whose result does not depend on the number of ranks, which may die and join while it goes on.

Steps have a fixed number of micro-batches (leaves), or workers step alone and meet (ringdp.DiLoCo).
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from ringdp.elastic.leaf import leaf
from ringdp.elastic.leaves import Leaves

__all__ = ["Leaves", "leaf", "survive", "survive_local"]
_LATER = {"survive": "ringdp.elastic.training", "survive_local": "ringdp.elastic.local_training"}


def __getattr__(name: str) -> Any:
    """What needs the wrapper or DiLoCo, at its first use."""
    if name not in _LATER:
        raise AttributeError(f"module 'ringdp.elastic' has no attribute '{name}'")
    globals()[name] = found = getattr(import_module(_LATER[name]), name)
    return found
