"""What tests of ringdp.elastic.survive share."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from dying import CLIP, Job, in_one_process


@pytest.fixture(scope="module")
def undisturbed() -> str:
    """The hash of one process."""
    return in_one_process()


@pytest.fixture(scope="module")
def clipped() -> str:
    """The same with gradients that are clipped."""
    return in_one_process(CLIP)


@pytest.fixture
def job(run_on_fresh_ranks) -> Callable[[int], Job]:
    return lambda ranks: Job(ranks, run_on_fresh_ranks)
