"""Worlds of ranks for the wrapper's tests, kept for the whole session."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parent))
from ranks import World, kept_worlds


@pytest.fixture(scope="session")
def world_of() -> Iterator[Callable[..., World]]:
    """world_of(3, transport="tcp"): a joined world; the same one for the same arguments."""
    with kept_worlds() as get:
        yield get


@pytest.fixture
def trio(world_of) -> World:
    """Three ranks: the fewest whose sums have more than one order."""
    return world_of(3)


@pytest.fixture
def pair(world_of) -> World:
    """Two ranks."""
    return world_of(2)


@pytest.fixture
def run_on_fresh_ranks() -> Iterator[Callable[..., World]]:
    """run_on_fresh_ranks(size, **settings): a world of this test alone, not joined yet."""
    with ExitStack() as stack:
        yield lambda size, **settings: stack.enter_context(World(size, **settings))
