"""A pair of ranks, and the stand-in."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parent))
from stand_in import stand_in
from worlds import pair, run_on_fresh_ranks, world_of

__all__ = ["pair", "run_on_fresh_ranks", "stand_in", "world_of"]
