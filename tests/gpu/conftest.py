"""Worlds of ranks that share one GPU."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from worlds import run_on_fresh_ranks, world_of

__all__ = ["run_on_fresh_ranks", "world_of"]
