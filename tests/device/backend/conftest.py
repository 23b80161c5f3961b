"""Worlds of ranks with a device of host threads."""

from __future__ import annotations

import pytest
from native import EXECUTORS, WINDOW_BYTES
from ranks import World


@pytest.fixture
def pair(world_of) -> World:
    """Two ranks whose collectives of device tensors run on the host."""
    return world_of(2, window_bytes=0)


@pytest.fixture
def native_pair(world_of) -> World:
    """Two ranks whose devices run them, with little memory: tests make many groups."""
    return world_of(2, window_bytes=WINDOW_BYTES)


@pytest.fixture(params=["shm", "tcp"])
def trio(world_of, request) -> World:
    """Three ranks over each transport."""
    return world_of(3, transport=request.param)


@pytest.fixture(params=EXECUTORS)
def executor(request) -> str:
    """Where the kernels of ranks wait: in themselves, or on streams."""
    return request.param
