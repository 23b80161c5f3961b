"""Rank processes for torch's multi-process test classes: forked off a warm interpreter, always reaped."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

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
