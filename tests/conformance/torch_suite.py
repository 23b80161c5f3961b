"""Runs torch's distributed tests one by one, each on ranks of its own, and reports the outcome of each.

Which tests cannot apply to any backend but gloo, and how many pass at least, is listed here as well.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import re
import time
import traceback
import unittest
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch_subject import BACKEND, DDP, TestSubject, common_distributed

# torch minor -> ranks -> how many tests pass at least; below it, torch has skipped what it should have run
LEAST_PASSED: dict[str, dict[int, int]] = {"2.13": {2: 87}}

_MONITORED = "dist.monitored_barrier refuses every backend whose name is not gloo"
NOT_APPLICABLE: dict[str, str] = {
    "test_monitored_barrier_gloo": _MONITORED,
    "test_monitored_barrier_gloo_subgroup": _MONITORED,
    "test_monitored_barrier_failure_order": _MONITORED,
    "test_monitored_barrier_wait_all_ranks": _MONITORED,
    "test_ddp_logging_data_cpu": "torch's DDP logger says 'custom' where the test wants the backend's name",
}
ABOUT_STOCK_DDP = {"test_ddp_logging_data_cpu"}  # applies to ringdp's class


def least_passed(torch_version: str, ranks: int) -> int:
    """0 where they have not been counted yet."""
    minor = ".".join(torch_version.split(".")[:2])
    return LEAST_PASSED.get(minor, {}).get(ranks, 0)


_GRACE_S = 10.0


def _enter(
    environment: dict[str, str], log: str, target: Callable[..., None], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    """The first code of a rank: the runner's environment as it is now, a log of its own, no gloo."""
    os.environ.clear()
    os.environ.update(environment)
    with open(log, "ab") as stream:
        os.dup2(stream.fileno(), 1)
        os.dup2(stream.fileno(), 2)
    import torch_subject

    torch_subject.forbid_gloo()
    target(*args, **kwargs)


class Ranks:
    """The processes of one test at a time; what they print goes to `log`."""

    def __init__(self, log: Path) -> None:
        self.log = log
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(["torch_subject"])
        self._live: list[Any] = []

    def process(self, target: Callable[..., None], name: str, args: Any, kwargs: Any = None, **options: Any) -> Any:
        """What torch's class calls in place of Process."""
        wrapped = (dict(os.environ), str(self.log), target, tuple(args), dict(kwargs or {}))
        self._live.append(self._context.Process(target=_enter, name=name, args=wrapped, **options))
        return self._live[-1]

    def reap(self) -> tuple[list[int], int]:
        """Exit codes of the ranks, and how many had to be killed because they did not end."""
        deadline, killed = time.monotonic() + _GRACE_S, 0
        started = [process for process in self._live if process.pid is not None]
        for process in started:
            process.join(max(0.0, deadline - time.monotonic()))
            if process.exitcode is None:
                killed += 1
                process.kill()
                process.join()
        self._live = []
        return [process.exitcode for process in started], killed


PASSED, FAILED, SKIPPED, NOT_FOR_US = "passed", "failed", "skipped", "not applicable"


@dataclass(frozen=True)
class Result:
    """What became of one test, why, and how long it took."""

    test: str
    outcome: str
    why: str = ""
    seconds: float = 0.0


class _Verdict(unittest.TestResult):
    """The outcome of the one test it is given to."""

    outcome, why = FAILED, "the test said nothing"

    def addSuccess(self, test: Any) -> None:
        self.outcome, self.why = PASSED, ""

    def addSkip(self, test: Any, reason: str) -> None:
        self.outcome, self.why = SKIPPED, reason

    def addFailure(self, test: Any, err: Any) -> None:
        self.outcome, self.why = FAILED, "".join(traceback.format_exception(*err))

    addError = addFailure


def names(pattern: str = "") -> list[str]:
    """Tests whose name the regular expression is found in."""
    return [name for name in unittest.TestLoader().getTestCaseNames(TestSubject) if re.search(pattern, name)]


def known_outcome(name: str) -> Result | None:
    """What can be said without ranks: the test is not for this backend, or needs GPUs."""
    test = getattr(TestSubject, name)
    if BACKEND != "gloo" and name in NOT_APPLICABLE and not (DDP == "ringdp" and name in ABOUT_STOCK_DDP):
        return Result(name, NOT_FOR_US, NOT_APPLICABLE[name])
    if getattr(test, "__unittest_skip__", False):
        return Result(name, SKIPPED, test.__unittest_skip_why__)
    return Result(name, SKIPPED, "needs GPUs") if _needs_gpus(test) else None


def _needs_gpus(test: Any) -> bool:
    """Whether one of torch's GPU gates is among the decorators; they keep their names from Python 3.11 on only.

    A gate that is not recognised here costs the time of ranks that skip.
    """
    while test is not None:
        code = test.__code__
        gate = getattr(code, "co_qualname", "").partition(".")[0]
        cells = dict(zip(code.co_freevars, (cell.cell_contents for cell in test.__closure__ or ()), strict=True))
        if gate == "skip_if_no_gpu" or (gate == "skip_if_lt_x_gpu" and not cells.get("allow_cpu")):
            return not torch.cuda.is_available()
        test = getattr(test, "__wrapped__", None)
    return False


class Suite:
    """Runs tests; logs of those that failed stay in `logs`."""

    def __init__(self, logs: Path, timeout_s: int) -> None:
        self._ranks = Ranks(logs)
        self._logs = logs
        common_distributed.TIMEOUT_DEFAULT = timeout_s
        common_distributed.logger.setLevel(logging.WARNING)
        TestSubject.start = self._ranks.process
        TestSubject.setUpClass()

    def run(self, name: str) -> Result:
        """Starts the ranks unless the outcome is known without them."""
        known = known_outcome(name)
        if known:
            return known
        self._ranks.log = self._logs / f"{name}.log"
        verdict, start = _Verdict(), time.monotonic()
        test = TestSubject(name)
        try:
            test.run(verdict)
        except SystemExit as stop:  # torch ends a test this way whose ranks could not be started
            verdict.outcome, verdict.why = FAILED, f"SystemExit: {stop}"
        codes, killed = self._ranks.reap()
        outcome, why = verdict.outcome, verdict.why
        # torch compares exit codes among ranks and stops looking when the body is done.
        may_crash = getattr(getattr(TestSubject, name), "__wrapped__", None) in test.skip_return_code_checks
        if outcome == PASSED and not may_crash and (killed or any(codes)):
            outcome, why = FAILED, f"exit codes of the ranks {codes}; {killed} of them had to be killed"
        if outcome == FAILED:
            why += f"\n{self._ranks.log.read_text(errors='replace')[-4000:]}" if self._ranks.log.exists() else ""
        else:
            self._ranks.log.unlink(missing_ok=True)
        return Result(name, outcome, why, time.monotonic() - start)
