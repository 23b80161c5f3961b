"""Two ranks on which calls are checked, kept for the whole session."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from ranks import World


@pytest.fixture(scope="session")
def pair() -> Iterator[World]:
    """Two ranks that have joined."""
    with World(2) as world:
        world.join()
        yield world
