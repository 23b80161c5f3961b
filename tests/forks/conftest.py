"""Worlds for the tests of forks and threads, over each transport."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from ranks import World


@pytest.fixture(params=["shm", "tcp"])
def make_world(request: pytest.FixtureRequest) -> Iterator[Callable[[int], World]]:
    """make_world(2): a world that has joined over the transport."""
    with ExitStack() as stack:

        def make(size: int) -> World:
            world = stack.enter_context(World(size, transport=request.param))
            world.join()
            return world

        yield make
