"""Worlds of ranks of every kind that the backend's tests are for."""

from __future__ import annotations

import pytest
from oracle import WORLDS
from ranks import World


@pytest.fixture(params=WORLDS)
def world(request, world_of) -> World:
    """Every number of ranks, transport and algorithm that folds in rank order."""
    size, settings = WORLDS[request.param]
    return world_of(size, **settings)


@pytest.fixture(params=["shm", "tcp"])
def trio(world_of, request) -> World:
    """Three ranks over each transport."""
    return world_of(3, transport=request.param)
