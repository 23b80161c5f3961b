"""Worlds of ranks for the backend's tests, kept for the whole session: a rank starts once, not once per test."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parent))
from oracle import WORLDS
from ranks import World, kept_worlds


@pytest.fixture(scope="session")
def world_of() -> Iterator[Callable[..., World]]:
    """world_of(3, transport="tcp"): a joined world; the same one for the same arguments."""
    with kept_worlds() as get:
        yield get


@pytest.fixture(params=WORLDS)
def world(request, world_of) -> World:
    """Every number of ranks, transport and algorithm that folds in rank order."""
    size, settings = WORLDS[request.param]
    return world_of(size, **settings)


@pytest.fixture
def pair(world_of) -> World:
    """Two ranks, default settings."""
    return world_of(2)


@pytest.fixture(params=["shm", "tcp"])
def trio(world_of, request) -> World:
    """Three ranks over each transport."""
    return world_of(3, transport=request.param)


@pytest.fixture
def run_on_fresh_ranks() -> Iterator[Callable[..., World]]:
    """run_on_fresh_ranks(size, **settings): a world of this test alone, not joined yet."""
    with ExitStack() as stack:
        yield lambda size, **settings: stack.enter_context(World(size, **settings))
