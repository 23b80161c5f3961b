"""Jobs on two hosts, for the comparison with one process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from jobs import Job
from namespaces import Network, why_impossible

LIMIT_S = 1200.0  # every cell on eight ranks


@pytest.fixture
def two_hosts(tmp_path: Path) -> Iterator[Callable[[int], Job]]:
    """two_hosts(2): two ranks on each of two hosts. Skips where namespaces are impossible."""
    if reason := why_impossible():
        pytest.skip(reason)
    with ExitStack() as stack:

        def make(per_host: int) -> Job:
            program = Path(__file__).with_name("on_host.py").resolve()
            job = Job(stack.enter_context(Network(2)), per_host, tmp_path, program, LIMIT_S)
            stack.callback(job.close)
            return job

        yield make
