"""Worlds of ranks for the tests of checkpoints, kept for the whole session; damaged checkpoints."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parent))
from ranks import World, kept_worlds


@pytest.fixture(scope="session")
def world_of() -> Iterator[Callable[..., World]]:
    """world_of(3): a joined world; the same one for the same arguments."""
    with kept_worlds() as get:
        yield get


@pytest.fixture
def trio(world_of) -> World:
    """Three ranks."""
    return world_of(3)


@pytest.fixture
def pair(world_of) -> World:
    """Two ranks."""
    return world_of(2)
