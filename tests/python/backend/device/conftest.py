"""Worlds of ranks with a device of host threads."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from ranks import World

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "gpu_stand_in"))
sys.path.insert(0, str(Path(__file__).resolve().parent))
from native import EXECUTORS, WINDOW_BYTES
from stand_in import stand_in

__all__ = ["stand_in"]


@pytest.fixture
def pair(world_of) -> World:
    """Two ranks whose collectives of device tensors run on the host."""
    return world_of(2, window_bytes=0)


@pytest.fixture
def native_pair(world_of) -> World:
    """Two ranks whose devices run them, with little memory: tests make many groups."""
    return world_of(2, window_bytes=WINDOW_BYTES)


@pytest.fixture(params=EXECUTORS)
def executor(request) -> str:
    """Where the kernels of ranks wait: in themselves, or on streams."""
    return request.param
