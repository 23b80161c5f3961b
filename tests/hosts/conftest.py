"""Fixtures of the tests over several hosts: networks that always end, and jobs on them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache
from pathlib import Path

import pytest
from jobs import Job
from namespaces import Network, why_impossible

reason = cache(why_impossible)


@pytest.fixture
def make_job(tmp_path: Path) -> Iterator[Callable[..., Job]]:
    """make_job(hosts, per_host): a network and the means to run ranks on it. Skips where namespaces are impossible."""
    if reason():
        pytest.skip(reason())
    with ExitStack() as stack:

        def make(hosts: int, per_host: int) -> Job:
            job = Job(stack.enter_context(Network(hosts)), per_host, tmp_path)
            stack.callback(job.close)
            return job

        yield make
