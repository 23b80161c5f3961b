"""Worlds of ranks of every kind that the backend's tests are for."""

from __future__ import annotations

import pytest
from oracle import WORLDS
from ranks import World


@pytest.fixture(params=WORLDS)
def place(request) -> str:
    """Every number of ranks, transport and algorithm that folds in rank order, by name."""
    return request.param


@pytest.fixture
def world(place, world_of) -> World:
    """The ranks there."""
    size, settings = WORLDS[place]
    return world_of(size, **settings)


@pytest.fixture(params=["shm", "tcp"])
def trio(world_of, request) -> World:
    """Three ranks over each transport."""
    return world_of(3, transport=request.param)
