"""A plugin of pytest that writes a line of findings when a test begins and when it has ended (devices/findings.py).

Tests that have lines of this part already are not run again, so a run goes on where an earlier one was killed. A test
that takes longer than $HANG_S, and with ranks the time for their contexts ($RANKS_CONTEXT_S each), ends the process
with the stacks of all threads on stderr, as nothing else ends a wait inside the CUDA driver, and when all is told the
process ends at once. Use: -p gpu_check.recorder -p no:faulthandler, with tests and benchmarks on PYTHONPATH.
"""

from __future__ import annotations

import faulthandler
import os
from collections.abc import Generator
from pathlib import Path

import pytest
from devices.findings import BEGUN, FAILED, PASSED, SKIPPED, Finding, read, record

HANG_S = float(os.environ.get("HANG_S", "15"))
CONTEXTS_S = 8 * float(os.environ.get("RANKS_CONTEXT_S", "0"))  # of the largest world that a test may have to start
FIXTURES_WITH_RANKS = {"world_of", "run_on_fresh_ranks"}
# Where stacks go: pytest catches what is written to 2 later on.
_stderr = os.fdopen(os.dup(2), "w")
faulthandler.enable(_stderr)
_ended: dict[str, Finding] = {}


def name_of(nodeid: str) -> str:
    """Without the folders."""
    return nodeid.rpartition("/")[2]


def starts_ranks(item: pytest.Item) -> bool:
    """Whether a test has ranks in processes of their own, which may have to be started for it."""
    return not FIXTURES_WITH_RANKS.isdisjoint(getattr(item, "fixturenames", ()))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Files look for a device when they are read, and the driver may not answer."""
    faulthandler.dump_traceback_later(2 * HANG_S, exit=True, file=_stderr)
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out what an earlier run has got to."""
    part = os.environ.get("FINDINGS_PART", "")
    known = {one.name for one in read(Path(os.environ.get("FINDINGS", os.devnull))) if one.part == part}
    config.hook.pytest_deselected(items=[item for item in items if name_of(item.nodeid) in known])
    items[:] = [item for item in items if name_of(item.nodeid) not in known]


def pytest_collection_finish(session: pytest.Session) -> None:
    """Has the process that ranks are forked off import torch now, so that no test waits for it."""
    if any(map(starts_ranks, session.items)):
        from ranks import spawner

        first = spawner.Process(target=os.getpid)
        first.start()
        first.join()


def pytest_collectreport(report: pytest.CollectReport) -> None:
    """A file that is skipped or cannot be imported is a finding."""
    if report.outcome != "passed":
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        record(Finding(name_of(report.nodeid), SKIPPED if report.outcome == "skipped" else FAILED, text=reason))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Around all phases of a test. One that is interrupted has begun and not ended."""
    name = name_of(item.nodeid)
    record(Finding(name, BEGUN))
    _ended[name] = Finding(name, PASSED)
    limit_s = HANG_S + (CONTEXTS_S if starts_ranks(item) else 0)
    faulthandler.dump_traceback_later(limit_s, exit=True, file=_stderr)
    try:
        done = yield
    finally:
        faulthandler.cancel_dump_traceback_later()
    record(_ended.pop(name))
    return done


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Adds a phase; the first that fails or skips is the verdict."""
    found = _ended[name_of(report.nodeid)]
    found.seconds += report.duration
    if report.outcome != "passed" and found.verdict == PASSED:
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longreprtext
        found.verdict = SKIPPED if report.skipped else FAILED
        said = [f"{title}:\n{text}" for title, text in report.sections]
        found.text = "\n".join([reason, *said]) if report.failed else reason


_status: list[int] = []


def pytest_sessionfinish(exitstatus: int) -> None:
    """Keeps what the process is to end with."""
    _status.append(int(exitstatus))


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config: pytest.Config) -> None:
    """At the end of a process the driver waits for its streams, some of which may never be done."""
    if _status:
        config.get_terminal_writer().flush()
        os._exit(_status[-1])
