"""A rig that writes into a list, and whose replaced functions come back; worlds of ranks."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))
from ringdp.doctor.probes.rig import Rig
from worlds import run_on_fresh_ranks

__all__ = ["run_on_fresh_ranks"]


@pytest.fixture
def rows() -> list:
    """What was written."""
    return []


@pytest.fixture
def rig(rows) -> Iterator[Rig]:
    """For install()."""
    made = Rig(rows.append)
    yield made
    made.patches.undo()


@pytest.fixture
def alone() -> Iterator[None]:
    """A process group of this process only."""
    import torch.distributed as dist

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()
