"""Worlds of ranks for the tests of ZeRO, kept for the whole session."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "ddp"))  # the models are those of the wrapper's tests
sys.path.insert(0, str(Path(__file__).resolve().parent))
from worlds import pair, run_on_fresh_ranks, trio, world_of

__all__ = ["pair", "run_on_fresh_ranks", "trio", "world_of"]
