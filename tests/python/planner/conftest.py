"""Worlds of ranks for the planner's tests that need some."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from worlds import pair, world_of

__all__ = ["pair", "world_of"]
