"""Training whose result does not depend on the number of ranks: steps of a fixed number of micro-batches (leaves)."""

from __future__ import annotations

from typing import Any

from ringdp.elastic.leaf import leaf
from ringdp.elastic.leaves import Leaves

__all__ = ["Leaves", "leaf", "survive"]


def __getattr__(name: str) -> Any:
    """`survive`, which needs the wrapper, at its first use."""
    if name != "survive":
        raise AttributeError(f"module 'ringdp.elastic' has no attribute '{name}'")
    from ringdp.elastic.training import survive

    globals()[name] = survive
    return survive
