"""Fixtures of worlds of ranks; a room's conftest imports those it uses, and then has worlds of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from ranks import World, kept_worlds


@pytest.fixture(scope="session")
def world_of() -> Iterator[Callable[..., World]]:
    """world_of(3, transport="tcp"): a joined world; the same one for the same arguments."""
    with kept_worlds() as get:
        yield get


@pytest.fixture
def pair(world_of) -> World:
    """Two ranks, default settings."""
    return world_of(2)


@pytest.fixture
def trio(world_of) -> World:
    """Three ranks: the fewest whose sums have more than one order."""
    return world_of(3)


@pytest.fixture
def run_on_fresh_ranks() -> Iterator[Callable[..., World]]:
    """run_on_fresh_ranks(size, **settings): a world of this test alone, not joined yet."""
    with ExitStack() as stack:
        yield lambda size, **settings: stack.enter_context(World(size, **settings))
