"""Fixtures of the fault tests: the transport, and worlds that always end."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from ranks import World


@pytest.fixture(params=["shm", "tcp"])
def transport(request: pytest.FixtureRequest) -> str:
    """Every test that asks for it runs over both."""
    return request.param


@pytest.fixture
def make_world(transport: str) -> Iterator[Callable[..., World]]:
    """make_world(size=4, timeout_s=60, **settings): a world that has joined over the transport."""
    with ExitStack() as stack:

        def make(size: int = 4, timeout_s: float = 60.0, **settings: object) -> World:
            world = stack.enter_context(World(size, transport=transport, **settings))
            world.join(timeout_s)
            return world

        yield make
