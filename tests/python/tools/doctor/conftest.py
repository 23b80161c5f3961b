"""A probe's context that writes into a list, and whose replaced functions come back."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch.distributed as dist
from ringdp.tools.doctor.probes.context import ProbeContext


@pytest.fixture
def rows() -> list:
    """What was written."""
    return []


@pytest.fixture
def context(rows) -> Iterator[ProbeContext]:
    """For install()."""
    made = ProbeContext(rows.append)
    yield made
    made.patches.undo()


@pytest.fixture
def alone() -> Iterator[None]:
    """A process group of this process only."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()
