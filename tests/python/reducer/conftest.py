"""Worlds of ranks for the reducer's tests, kept for the whole session."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parent))
from worlds import trio, world_of

__all__ = ["trio", "world_of"]
