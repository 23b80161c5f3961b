"""Fixtures of the tests of several groups: the transport, and worlds that always end."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from ranks import World


@pytest.fixture(params=["shm", "tcp"])
def make_world(request: pytest.FixtureRequest) -> Iterator[Callable[..., World]]:
    """make_world(size): a world that has joined, over each transport."""
    with ExitStack() as stack:

        def make(size: int, **settings: object) -> World:
            world = stack.enter_context(World(size, transport=request.param, **settings))
            world.join(60.0)
            return world

        yield make
