"""Training whose result does not depend on the number of ranks: steps of a fixed number of micro-batches (leaves)."""

from __future__ import annotations

from ringdp.elastic.leaf import leaf
from ringdp.elastic.leaves import Leaves

__all__ = ["Leaves", "leaf"]
