"""Worlds of ranks for the tests of checkpoints, kept for the whole session; damaged checkpoints."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parent))
from worlds import pair, trio, world_of

__all__ = ["pair", "trio", "world_of"]
