"""Fixtures for every test: worlds of ranks, one registry of them per process; an interpreter of a test's own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from forked import run_forked, without_settings
from jobs import FAR, Job
from ranks import KeptWorlds, World, open_worlds
from ringdp.tools.netns.far import FarNetwork, why_not_far
from ringdp.tools.netns.namespaces import Network, why_impossible
from stand_in import built

LIMIT_S = 300  # for what hangs: under load ten, what takes ten seconds takes minutes
SAID = 3000  # characters of what a rank has written, where its test has failed

# What a developer has measured must not change what tests count.
os.environ["RINGDP_TUNE"] = "off"
# torch's store asks for the name of each address that connects to it: a lost DNS query costs a second, and not five.
os.environ.setdefault("RES_OPTIONS", "timeout:1 attempts:1")
_worlds = KeptWorlds()
_why_no_hosts = cache(why_impossible)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Ranks that have loaded the stand-in of a GPU, which is for good, stay among tests that use it."""
    _worlds.begin_test("stand_in" if "stand_in" in getattr(item, "fixturenames", ()) else "")


def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> None:
    """After a failure what its ranks wrote to stderr is part of the report, and its worlds are not used again."""
    if call.excinfo is not None and not call.excinfo.errisinstance(pytest.skip.Exception):
        for world in [world for world in open_worlds if not _worlds.is_idle(world)]:
            for rank in range(world.size):
                if said := world.stderr(rank):
                    item.add_report_section(call.when, f"stderr of rank {rank} of {world.size}", said[-SAID:])
        _worlds.drop_used()


@pytest.fixture(scope="session")
def world_of() -> Iterator[Callable[..., World]]:
    """world_of(3, transport="tcp"): a joined world; the same one for the same arguments."""
    yield _worlds
    _worlds.close()


@pytest.fixture
def pair(world_of) -> World:
    """Two ranks, default settings."""
    return world_of(2)


@pytest.fixture
def trio(world_of) -> World:
    """Three ranks: the fewest whose sums have more than one order."""
    return world_of(3)


@pytest.fixture
def run_on_fresh_ranks() -> Iterator[Callable[..., World]]:
    """run_on_fresh_ranks(size, **settings): a world of this test alone, not joined yet."""
    with ExitStack() as stack:
        yield lambda size, **settings: stack.enter_context(World(size, **settings))


@pytest.fixture(params=["shm", "tcp"])
def transport(request: pytest.FixtureRequest) -> str:
    """Every test that asks for it, or for make_world, runs over both."""
    return request.param


@pytest.fixture
def make_world(transport: str) -> Iterator[Callable[..., World]]:
    """make_world(size=4, timeout_s=60, **settings): a world of this test alone that has joined over the transport."""
    with ExitStack() as stack:

        def make(size: int = 4, timeout_s: float = 60.0, **settings: object) -> World:
            world = stack.enter_context(World(size, transport=transport, **settings))
            world.join(timeout_s)
            return world

        yield make


@pytest.fixture
def make_job(tmp_path: Path) -> Iterator[Callable[..., Job]]:
    """make_job(hosts, per_host, **settings of Job): ranks on several hosts. Skips where there are no namespaces."""
    if reason := _why_no_hosts():
        pytest.skip(reason)
    with ExitStack() as stack:

        def make(hosts: int, per_host: int, **settings: Any) -> Job:
            job = Job(stack.enter_context(Network(hosts)), per_host, tmp_path, **settings)
            stack.callback(job.close)
            return job

        yield make


@pytest.fixture
def make_far_job(tmp_path: Path) -> Iterator[Callable[..., Job]]:
    """make_far_job(hosts, **settings of FarNetwork): a rank on each of several hosts that are far apart."""
    if reason := why_not_far():
        pytest.skip(reason)
    with ExitStack() as stack:

        def make(hosts: int, **settings: Any) -> Job:
            job = Job(stack.enter_context(FarNetwork(hosts, **settings)), 1, tmp_path)
            stack.callback(job.close)
            return job

        yield make


@pytest.fixture(params=["near", pytest.param("far", marks=pytest.mark.long)])
def make_job_at(request: pytest.FixtureRequest) -> Callable[..., Job]:
    """make_job_at(hosts): a rank on each of several hosts; every test that asks for it runs near and far apart."""
    if request.param == "near":
        return lambda hosts: request.getfixturevalue("make_job")(hosts, 1)
    return lambda hosts: request.getfixturevalue("make_far_job")(hosts, **FAR)


@pytest.fixture(scope="session")
def stand_in() -> str:
    """The library of a device of host threads; compiled as far as something changed."""
    return built()


@pytest.fixture
def one_thread() -> Iterator[None]:
    """One intra-op thread, as every rank has: bits can be compared, and small kernels do not fight for cores."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def run_python() -> Callable[..., subprocess.CompletedProcess[str]]:
    """run_python(code, NAME=value, ...) or run_python("-m", "module", ...): a fresh interpreter's result.

    The RINGDP_ variables of this environment are not handed on; the keyword arguments are added.
    """

    def run(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, *_as_options(arguments)]
        with _saying_what_was_said():
            return subprocess.run(command, env=_environment(variables), capture_output=True, text=True, timeout=LIMIT_S)

    return run


@pytest.fixture
def run_warm() -> Callable[..., subprocess.CompletedProcess[str]]:
    """run_python where the interpreter need not be a fresh one: torch and ringdp have been imported in it before.

    Not for tests of imports, of the end of an interpreter, of signals, or of forks.
    """

    def run(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        with _saying_what_was_said():
            return run_forked(*_as_options(arguments), env=_environment(variables), timeout_s=LIMIT_S)

    return run


def _as_options(arguments: tuple[str, ...]) -> tuple[str, ...]:
    return arguments if len(arguments) > 1 else ("-c", *arguments)


def _environment(variables: dict[str, str]) -> dict[str, str]:
    return without_settings(**{"RINGDP_TUNE": "off", **variables})


@contextmanager
def _saying_what_was_said() -> Iterator[None]:
    """A program that is not done in time is a failure."""
    try:
        yield
    except subprocess.TimeoutExpired as late:
        said = [(stream or b"").decode(errors="replace") for stream in (late.stdout, late.stderr)]
        raise AssertionError(f"not done after {LIMIT_S} s, having said: {said}") from None
