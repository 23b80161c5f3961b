"""Worlds of ranks for the backend's tests, kept for the whole session: a rank starts once, not once per test."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parent))
from oracle import WORLDS
from ranks import World
from worlds import pair, run_on_fresh_ranks, world_of


@pytest.fixture(params=WORLDS)
def world(request, world_of) -> World:
    """Every number of ranks, transport and algorithm that folds in rank order."""
    size, settings = WORLDS[request.param]
    return world_of(size, **settings)


@pytest.fixture(params=["shm", "tcp"])
def trio(world_of, request) -> World:
    """Three ranks over each transport."""
    return world_of(3, transport=request.param)


__all__ = ["pair", "run_on_fresh_ranks", "world_of"]
